"""The whole Transformer: from token ids to logits and the training loss."""

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from . import loss, mask, states
from .dropout import Keep, part
from .embedding import Logits
from .encoder_only import EncoderHeads
from .framework import Routed, check_dense, keras, register
from .heads import Classifier, MaskedLanguageHead, Pooler
from .inputs import InputLayers, checked_texts, embed, masked_positions, real_tokens, texts
from .stacks import Decoder, Encoder
from .values import Ids, Text

__all__ = ["Transformer"]


@register
class Transformer(EncoderHeads, keras.Model):
    """`model(source, target)` returns logits `b t v`; row t scores the token after target t.

    source, target: a `Text`, or only ids; a decoder-only model also accepts `model(target)`. An
    encoder-only model is `model(source)`, the output of its head or of `encode`. `fit` and
    `predict` pass one argument: the pair (source, target), the single input, or a mapping with
    names of `inputs.OF_SOURCE` and `inputs.OF_TARGET`. The result has no Keras mask. Outside a
    model call, pass `training` to the methods.
    """

    def __init__(self, config: TransformerConfig, **kwargs: object) -> None:
        super().__init__(config, **kwargs)
        width, dtype = config.model_width, self.dtype_policy
        if config.encoder_layers:
            (
                self.source_embedding,
                self.source_position_embedding,
                self.source_segment_embedding,
                self.source_embedding_norm,
            ) = InputLayers.new(config, "source", dtype)
            self.encoder = Encoder(config, dtype=dtype, name="encoder")
        if config.decoder_layers:
            self.target_embedding, self.target_position_embedding, _, self.target_embedding_norm = (
                InputLayers.new(config, "target", dtype)
            )
            self.decoder = Decoder(config, dtype=dtype, name="decoder")
            vocabulary, tied = config.target_vocabulary, config.tie_logits
            self.logits = Logits(config, vocabulary, tied, dtype=dtype, name="logits")
        if config.pooler:
            self.pooler = Pooler(width, config.pooler_activation, dtype=dtype, name="pooler")
        if config.classes:
            rate = config.classifier_dropout_rate
            self.classifier = Classifier(
                width, config.classes, rate, dtype=dtype, name="classifier"
            )
        if config.masked_language_head:
            self.masked_language_head = MaskedLanguageHead(
                config, config.tie_logits, dtype=dtype, name="masked_language_head"
            )

    def call(
        self,
        source: Ids | None = None,
        target: Ids | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
        routed: Routed | None = None,
    ) -> tf.Tensor:
        source, target = checked_texts(self.config, source, target)
        if target is None:
            return self.encoder_output(source, keep, training)
        memory_bsd = source_mask_bs = None
        if source is not None:
            memory_bsd = self.encode(source, keep, training)
            source_mask_bs = real_tokens(self.config, source)
        return self.decode(target, memory_bsd, source_mask_bs, keep, training, routed)

    def encode(
        self, source: Ids, keep: Keep | None = None, training: bool | None = None
    ) -> tf.Tensor:
        """`memory = encoder(dropout(norm(embedding(source) + position + segment)))`, `b s d`.

        Raises ValueError on invalid ids, masks and shapes, and if the config has no encoder.
        """
        self.config.need_encoder()
        x_bsd, mask_bhts, position_bs = self.embed("source", source, keep, training)
        return self.encoder(x_bsd, mask_bhts, part(keep, "encoder"), position_bs, training=training)

    def decode(
        self,
        target: Ids,
        memory_bsd: tf.Tensor | None = None,
        source_mask_bs: tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
        routed: Routed | None = None,
    ) -> tf.Tensor:
        """`logits(decoder(dropout(norm(embedding(target) + position)), memory))`, `b t v`.

        source_mask_bs: True = real token of the source; None: all are. routed: collects the logits
        of the layers' routers. Raises ValueError on invalid
        ids, masks and shapes, and if the config has no decoder.
        """
        self.config.need_decoder()
        memory_shape = None if memory_bsd is None else memory_bsd.shape
        checks.check_memory(
            self.config.cross_attention, self.config.model_width, memory_shape, source_mask_bs
        )
        if memory_bsd is not None:
            ids = target.ids if isinstance(target, Text) else target
            checks.check_same_batch(source=memory_bsd.shape, target=ids.shape)
            mask.check("source mask", source_mask_bs, memory_bsd.shape[:2])
        x_btd, self_mask_bhts, position_bt = self.embed("target", target, keep, training)
        x_btd = self.decoder(
            x_btd,
            memory_bsd,
            self_mask_bhts,
            mask.padding_mask(source_mask_bs),
            part(keep, "decoder"),
            position_bt,
            training=training,
            routed=routed,
        )
        return self.head(x_btd)

    def training_loss(
        self,
        source: Ids | None,
        target: tf.Tensor,
        smoothing: float = 0.0,
        total: int | tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
        router_aux_weight: float = 0.0,
        router_z_weight: float = 0.0,
    ) -> tf.Tensor:
        """The cross-entropy of every target token after the first: a scalar in the variables'
        dtype.

        Padding labels do not count. total: the divisor, default the number of counted labels. A
        replica of a tf.distribute.Strategy must pass the total of all replicas, whose gradients are
        summed: `total=tf.distribute.get_replica_context().all_reduce("SUM", own_count)`. With
        weights of routers, `loss.router_loss` of the real tokens whose labels count is added, times
        the share of these labels in total (BALANCE).
        """
        config, weights = self.config, (router_aux_weight, router_z_weight)
        config.need_decoder()
        routed = Routed() if any(weights) else None
        if routed is not None:
            config.need_router_loss()
        input_bt, label_bt = loss.teacher_forcing(target)
        logits_btv = self(source, input_bt, keep=keep, training=training, routed=routed)
        mask_bt = mask.token_mask(label_bt, config.padding_id)
        value = loss.cross_entropy(
            tf.cast(logits_btv, self.variable_dtype), label_bt, mask_bt, smoothing, total
        )
        if routed is None:
            return value
        scored_bt = mask_bt & mask.token_mask(input_bt, config.padding_id)
        logits_lbtx = tf.stack(routed.logits)
        added = loss.router_loss(logits_lbtx, config.experts_per_token, scored_bt, *weights)
        return value + tf.cast(added * loss.share(mask_bt, total, added.dtype), value.dtype)

    def states(self, source: Ids | None = None, target: Ids | None = None) -> states.States:
        """Returns the vectors between the layers and all attention weights: `states.states`."""
        return states.states(self, Text.of(source), Text.of(target))

    def embed(
        self, side: str, text: Ids, keep: Keep | None = None, training: bool | None = None
    ) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor | None]:
        """Returns the first layer's input, the mask of its keys, `b 1 1 s`, and the positions.

        None, None: all tokens are real, and token t has position t. side: "source" or "target".
        """
        ids, mask_bt, segment_bt = Text.of(text) or Text(None)
        check_dense(ids, mask_bt, segment_bt)
        mask_bt, position_bt = masked_positions(self.config, side, ids, mask_bt)
        if segment_bt is not None:
            segments = self.config.segments if side == "source" else 0
            checks.check_segments(segments, segment_bt.shape, segment_bt.dtype.name, ids.shape)
        x_btd = embed(self, side, ids, position_bt, segment_bt)
        stack = self.encoder if side == "source" else self.decoder
        keep_btd = part(keep, "encoder" if side == "source" else "decoder", "embedding_dropout")
        x_btd = stack.embedding_dropout(x_btd, keep_btd, training=training)
        if mask_bt is None:
            return x_btd, None, None
        return x_btd, mask.padding_mask(mask_bt), position_bt

    def head(self, x_btd: tf.Tensor) -> tf.Tensor:
        """The logits of the decoder's output; a tied kernel is the transposed table."""
        tied = self.config.tie_logits
        table = InputLayers.of(self, "target").embedding.adapted() if tied else None
        return self.logits(x_btd, table)

    def compute_output_shape(
        self, source_shape: tf.Tensor, target_shape: tf.Tensor = None
    ) -> tuple[int | None, ...]:
        config = self.config
        source, target = texts(config, source_shape, target_shape)
        batch, length = (target or source or Text(None)).ids[:2]
        if target is not None:
            return batch, length, config.target_vocabulary
        if config.classes:
            return batch, config.classes
        width = config.source_vocabulary if config.masked_language_head else config.model_width
        return batch, length, width

    def compute_mask(self, *_: object, **__: object) -> None:
        """The result has no mask."""

    def summary(self, *args: object, **kwargs: object) -> None:
        self.build()
        super().summary(*args, **kwargs)

    def export(
        self,
        filepath: object,
        format: str = "tf_saved_model",
        verbose: object = None,
        input_signature: object = None,
        **kwargs: object,
    ) -> None:
        """`keras.Model.export`, by default with int64 ids of any batch size and length.

        LiteRT has no float64 sine, so it raises ValueError unless lengths are fixed; fix them also
        for `tf.lite.TFLiteConverter.from_saved_model`. `from_concrete_functions(functions)` of that
        converter leaves the variables of every Keras 3 model unset, and its output is NaN.
        """
        self.build()
        if input_signature is None:
            stacks = {"source": self.config.encoder_layers, "target": self.config.decoder_layers}
            names = [name for name, layers in stacks.items() if layers]
            input_signature = [
                keras.InputSpec(shape=(None, None), dtype="int64", name=name) for name in names
            ]
        lengths = [spec.shape[1] for spec in tf.nest.flatten(input_signature)]
        if format == "litert" and None in lengths:
            raise ValueError(
                "a litert export needs an input_signature with fixed lengths; "
                f"got lengths {lengths}"
            )
        super().export(filepath, format, verbose, input_signature, **kwargs)

    def check_ids(
        self, source: Ids | None = None, target: Ids | None = None, *_: object, **__: object
    ) -> None:
        """Raises ValueError on ids outside the tables, which a compiled graph could not check."""
        source, target = texts(self.config, source, target)
        if source is not None and self.config.encoder_layers:
            layers = InputLayers.of(self, "source")
            layers.embedding.check_ids(source.ids)
            if source.segment is not None and layers.segment_embedding is not None:
                layers.segment_embedding.check_ids(source.segment)
        if target is not None and self.config.decoder_layers:
            InputLayers.of(self, "target").embedding.check_ids(target.ids)
