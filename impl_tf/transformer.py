"""The whole Transformer: embeddings, encoder, decoder, logits and heads."""

from typing import Any

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from . import inputs, loss, mask, states
from .dropout import Keep, part
from .embedding import Embedding, Logits, SegmentEmbedding
from .encoder_only import EncoderHeads
from .framework import INPUTS, attached_mask, by_name, check_dense, keras, register
from .heads import Classifier, MaskedLanguageHead, Pooler
from .normalization import norm
from .positional_encoding import PositionEmbedding
from .stacks import Decoder, Encoder

__all__ = ["Transformer"]


@register
class Transformer(EncoderHeads, keras.Model):
    """`model(source, target)` gives logits `b t v`, row t for the token after target t.

    A decoder-only model is `model(None, target)` or `model(target)`. An encoder-only model is
    `model(source)`: the classes or the logits of masked tokens by its head, or without a head the
    vectors of `encode`. `fit` and `predict` hand over one argument: the pair (source, target), the
    single input, or a mapping with names of INPUTS. If no mask is given, the one that Keras
    attached to the ids counts, then the padding id; the result has no mask. skip_padding: the
    logits of padding are zeros (PADDING). Outside a call of the model, pass `training` to `encode`
    and `decode`.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        width, dtype = config.model_width, self.dtype_policy
        if config.encoder_layers:
            self._add_inputs("source", config.source_vocabulary)
            self.encoder = Encoder(config, dtype=dtype, name="encoder")
        if config.decoder_layers:
            self._add_inputs("target", config.target_vocabulary)
            self.decoder = Decoder(config, dtype=dtype, name="decoder")
            self.logits = Logits(
                width,
                config.target_vocabulary,
                config.output_bias,
                config.tie_logits,
                config.logit_scale,
                config.logit_cap,
                dtype=dtype,
                name="logits",
            )
        if config.pooler:
            self.pooler = Pooler(width, config.pooler_activation, dtype=dtype, name="pooler")
        if config.classes:
            self.classifier = Classifier(
                width,
                config.classes,
                config.classifier_dropout_rate,
                dtype=dtype,
                name="classifier",
            )
        if config.masked_language_head:
            self.masked_language_head = MaskedLanguageHead(
                config, config.tie_logits, dtype=dtype, name="masked_language_head"
            )

    def _add_inputs(self, side: str, vocabulary: int) -> None:
        """The layers of that side whose outputs `inputs.embed` adds up and normalises."""
        config, width, dtype = self.config, self.config.model_width, self.dtype_policy
        parts: dict[str, Any] = {}
        if inputs.table(config, side) == f"{side}_embedding":
            scale = config.scale_embedding, config.round_embedding_scale
            parts["embedding"] = Embedding(
                vocabulary, width, *scale, dtype=dtype, name=f"{side}_embedding"
            )
        if config.positions == "learned":
            sizes = config.sizes["p"], width, config.position_offset
            parts["position_embedding"] = PositionEmbedding(
                *sizes, dtype=dtype, name=f"{side}_position_embedding"
            )
        if config.segments and side == "source":
            parts["segment_embedding"] = SegmentEmbedding(
                config.segments, width, dtype=dtype, name="source_segment_embedding"
            )
        if config.embedding_norm:
            name = f"{side}_embedding_norm"
            parts["embedding_norm"] = norm(config, dtype=dtype, name=name)
        for name, layer in parts.items():
            setattr(self, f"{side}_{name}", layer)

    def call(
        self,
        source: Any = None,
        target: tf.Tensor | None = None,
        source_mask_bs: tf.Tensor | None = None,
        target_mask_bt: tf.Tensor | None = None,
        keep: Keep | None = None,
        segment_bs: tf.Tensor | None = None,
        skip_padding: bool = False,
        training: bool | None = None,
    ) -> tf.Tensor:
        source, target, source_mask_bs, target_mask_bt, segment_bs = self.given(
            source, target, source_mask_bs, target_mask_bt, segment_bs
        )
        if target is None:
            return self.encoder_output(source, source_mask_bs, keep, segment_bs, training)
        memory_bsd = None
        if source is not None:
            memory_bsd = self.encode(source, source_mask_bs, keep, segment_bs, training)
            if source_mask_bs is None and self.config.padding_id is not None:
                source_mask_bs = mask.token_mask(source, self.config.padding_id)
        logits_btv = self.decode(target, memory_bsd, source_mask_bs, target_mask_bt, keep, training)
        if not skip_padding:
            return logits_btv
        if target_mask_bt is None:
            target_mask_bt = mask.token_mask(target, self.config.padding_id)
        return tf.where(target_mask_bt[..., tf.newaxis], logits_btv, tf.zeros((), logits_btv.dtype))

    def given(
        self,
        source: Any = None,
        target: tf.Tensor | None = None,
        source_mask_bs: tf.Tensor | None = None,
        target_mask_bt: tf.Tensor | None = None,
        segment_bs: tf.Tensor | None = None,
    ) -> tuple[Any, ...]:
        """The inputs of a call in the order of INPUTS, whichever way they are handed over.

        Raises ValueError on inputs that the config does not have, or has and are not given.
        """
        config = self.config
        given = by_name(
            config,
            source,
            target,
            source_mask_bs=source_mask_bs,
            target_mask_bt=target_mask_bt,
            segment_bs=segment_bs,
        )
        for side, name in (("source", "source_mask_bs"), ("target", "target_mask_bt")):
            if given[side] is not None and given[name] is None:
                given[name] = attached_mask(given[side])
        source, target, source_mask_bs, target_mask_bt, segment_bs = (
            given[name] for name in INPUTS
        )
        checks.check_source_given(
            config.encoder_layers, source, source_mask_bs=source_mask_bs, segment_bs=segment_bs
        )
        checks.check_target_given(config.decoder_layers, target, target_mask_bt=target_mask_bt)
        if source is not None and target is not None:
            checks.check_same_batch(source=source.shape, target=target.shape)
        return source, target, source_mask_bs, target_mask_bt, segment_bs

    def encode(
        self,
        source: tf.Tensor,
        source_mask_bs: tf.Tensor | None = None,
        keep: Keep | None = None,
        segment_bs: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """`memory = encoder(dropout(norm(embedding(source) + position + segment)))`, `b s d`.

        source: ids `b s`, or soft one-hot rows `b s v`. segment_bs: the segment of every token, by
        default 0. Norm and segments are by config.
        Raises ValueError on ids, masks and shapes that do not fit, and without an encoder.
        """
        self.config.need_encoder()
        x_bsd, mask_bhts, position_bs = self.embed("source", source, source_mask_bs, segment_bs)
        keep_bsd = part(keep, "encoder", "embedding_dropout")
        x_bsd = self.encoder.embedding_dropout(x_bsd, keep_bsd, training=training)
        rest = part(keep, "encoder"), position_bs
        return self.encoder(x_bsd, mask_bhts, *rest, training=training)

    def decode(
        self,
        target: tf.Tensor,
        memory_bsd: tf.Tensor | None = None,
        source_mask_bs: tf.Tensor | None = None,
        target_mask_bt: tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """`logits(decoder(dropout(embedding(target) + position), memory))`, `b t v`.

        Row t scores the token after target t. memory_bsd: None in a decoder-only model.
        Raises ValueError on ids, masks and shapes that do not fit, and without a decoder.
        """
        self.config.need_decoder()
        memory_shape = None if memory_bsd is None else memory_bsd.shape
        checks.check_memory(
            self.config.cross_attention, self.config.model_width, memory_shape, source_mask_bs
        )
        if memory_bsd is not None:
            checks.check_same_batch(source=memory_bsd.shape, target=target.shape)
        x_btd, self_mask_bhts, position_bt = self.embed("target", target, target_mask_bt)
        keep_btd = part(keep, "decoder", "embedding_dropout")
        x_btd = self.decoder.embedding_dropout(x_btd, keep_btd, training=training)
        cross_mask_bhts = None
        if source_mask_bs is not None and memory_bsd is not None:
            checks.check_token_mask(
                "source mask", source_mask_bs.shape, source_mask_bs.dtype.name, memory_bsd.shape[:2]
            )
            cross_mask_bhts = mask.padding_mask(source_mask_bs)
        rest = self_mask_bhts, cross_mask_bhts, part(keep, "decoder"), position_bt
        x_btd = self.decoder(x_btd, memory_bsd, *rest, training=training)
        return self.head(x_btd)

    def head(self, x_btd: tf.Tensor) -> tf.Tensor:
        """The logits of the decoder's result; tied, their kernel is the transposed table."""
        return self.logits(
            x_btd, self.token_embedding("target").adapted() if self.config.tie_logits else None
        )

    def token_embedding(self, side: str) -> Embedding:
        """The token embedding of source or target, which may be one: `source_embedding`."""
        return getattr(self, inputs.table(self.config, side))

    def states(
        self,
        source: tf.Tensor | None = None,
        target: tf.Tensor | None = None,
        source_mask_bs: tf.Tensor | None = None,
        target_mask_bt: tf.Tensor | None = None,
        segment_bs: tf.Tensor | None = None,
    ) -> dict[str, Any]:
        """The vectors between the layers and the attention weights: `states.states`."""
        return states.states(self, source, target, source_mask_bs, target_mask_bt, segment_bs)

    def training_loss(
        self,
        source: tf.Tensor | None,
        target: tf.Tensor,
        smoothing: float = 0.0,
        total: int | tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """The cross-entropy of every token of the target after the first, a scalar, of the dtype of
        the variables.

        Labels that are the padding id do not count. total: what the sum is divided by, by default
        the labels that count. A replica of a tf.distribute.Strategy must be given that of all
        replicas, since their gradients are summed:
        `total=tf.distribute.get_replica_context().all_reduce("SUM", own_count)`.
        """
        self.config.need_decoder()
        input_bt, label_bt = loss.teacher_forcing(target)
        logits_btv = self(source, input_bt, keep=keep, training=training)
        mask_bt = mask.token_mask(label_bt, self.config.padding_id)
        return loss.cross_entropy(
            tf.cast(logits_btv, self.variable_dtype), label_bt, mask_bt, smoothing, total
        )

    def compute_output_shape(
        self, source_shape: Any, target_shape: Any = None
    ) -> tuple[int | None, ...]:
        config, given = self.config, by_name(self.config, source_shape, target_shape)
        if config.decoder_layers:
            return (*given["target"][:2], config.target_vocabulary)
        rows = given["source"][:2]
        if config.classes:
            return rows[0], config.classes
        return (
            *rows,
            config.source_vocabulary if config.masked_language_head else config.model_width,
        )

    def compute_mask(self, *_: Any, **__: Any) -> None:
        """The result has no mask."""

    def summary(self, *args: Any, **kwargs: Any) -> None:
        self.build()
        super().summary(*args, **kwargs)

    def export(
        self,
        filepath: Any,
        format: str = "tf_saved_model",
        verbose: Any = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """`keras.Model.export`; by default the exported function takes int64 ids of any batch and
        lengths.

        LiteRT has no sine in float64, so its positions must be constants: raises ValueError if a
        length is not fixed. For `tf.lite.TFLiteConverter.from_saved_model` export fixed lengths
        too. Its `from_concrete_functions(functions)`, which is given no model, leaves the variables
        of every Keras 3 model unset: the output is NaN.
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
                "a litert export must have an input_signature of fixed lengths; "
                f"got lengths {lengths}"
            )
        super().export(filepath, format, verbose, input_signature, **kwargs)

    def check_ids(
        self, source: Any = None, target: Any = None, *_: Any, segment_bs: Any = None, **__: Any
    ) -> None:
        """Raises ValueError on ids outside the tables: `compiled` calls it before its graph, in
        which ids have no values."""
        given = by_name(self.config, source, target, segment_bs=segment_bs)
        if given["source"] is not None and self.config.encoder_layers:
            self.source_embedding.check_ids(given["source"])
        if given["target"] is not None and self.config.decoder_layers:
            self.token_embedding("target").check_ids(given["target"])
        if given["segment_bs"] is not None and self.config.segments:
            self.source_segment_embedding.check_ids(given["segment_bs"])

    def embed(
        self,
        side: str,
        token: tf.Tensor,
        mask_bt: tf.Tensor | None = None,
        segment_bt: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor | None]:
        """The input of the first layer of a side, "source" or "target", before dropout, the mask of
        its keys, `b 1 1 s`, and the positions; None: every token is real, and token t has position
        t."""
        check_dense(token, mask_bt, segment_bt)
        mask_bt, position_bt = inputs.masked_positions(self.config, side, token, mask_bt)
        if segment_bt is not None:
            checks.check_segments(
                self.config.segments, segment_bt.shape, segment_bt.dtype.name, token.shape
            )
        x_btd = inputs.embed(self, side, token, position_bt, segment_bt)
        if mask_bt is None:
            return x_btd, None, None
        return x_btd, mask.padding_mask(mask_bt), position_bt
