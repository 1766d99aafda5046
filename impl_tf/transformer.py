"""The whole Transformer: embeddings, encoder, decoder, logits, and the heads of an encoder alone."""

from typing import Any

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from . import inputs, loss, mask, states
from .embedding import Embedding, Logits, SegmentEmbedding
from .encoder_only import EncoderOnly
from .fast.packing import PACK_FROM, Packing, Packings, counted, pack, rows, unpack
from .framework import INPUTS, attached_mask, by_name, check_dense, keras, register
from .heads import Classifier, MaskedLanguageHead, Pooler
from .layers import Keep
from .normalization import LayerNorm
from .positional_encoding import PositionEmbedding
from .stacks import Decoder, Encoder

__all__ = ["Transformer"]


@register
class Transformer(EncoderOnly, keras.Model):
    """Logits `b t v` of the token after each target position, given the source: `decode(target, encode(source))`.

    It has the parts that the config has: a decoder alone is given None for the source; an encoder alone is given no target and gives what
    its head does, the logits of `classify` or of `masked_language_logits`, or without a head what `encode` does. Outside a call of the
    model its methods take `training` themselves. `fit` and `predict` hand over one argument: a pair, source and target; what a single stack
    reads; or a mapping of names in INPUTS, masks and segments among them. Where no mask is given, one that Keras attached to the ids
    counts; none is attached to the result.
    skip_padding: the logits of padding are zeros (PADDING), and not computed where packings, which `compiled` makes, say so.
    pack_from: rows are packed where the positions that this saves, times the model's width, are not fewer.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.pack_from = PACK_FROM
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
                dtype=dtype,
                name="logits",
            )
        if config.pooler:
            self.pooler = Pooler(width, dtype=dtype, name="pooler")
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
        """What `inputs.embed` adds up and normalises on that side."""
        config, width, parts = self.config, self.config.model_width, {}
        if inputs.table(config, side) == f"{side}_embedding":
            parts["embedding"] = Embedding(
                vocabulary,
                width,
                config.scale_embedding,
                dtype=self.dtype_policy,
                name=f"{side}_embedding",
            )
        if config.positions == "learned":
            sizes = config.sizes["p"], width, config.position_offset
            parts["position_embedding"] = PositionEmbedding(
                *sizes, dtype=self.dtype_policy, name=f"{side}_position_embedding"
            )
        if config.segments and side == "source":
            parts["segment_embedding"] = SegmentEmbedding(
                config.segments, width, dtype=self.dtype_policy, name="source_segment_embedding"
            )
        if config.embedding_norm:
            parts["embedding_norm"] = LayerNorm(
                width, config.epsilon, dtype=self.dtype_policy, name=f"{side}_embedding_norm"
            )
        for name, part in parts.items():
            setattr(self, f"{side}_{name}", part)

    def encode(
        self,
        source: tf.Tensor,
        source_mask_bs: tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
        segment_bs: tf.Tensor | None = None,
        packing: Packing | None = None,
    ) -> tf.Tensor:
        """`memory = encoder(dropout(norm(embedding(source) + position + segment)))`, `b s d`, with norm and segments by config.

        source: ids `b s`, or soft one-hot rows `b s v`. segment_bs: the segment of every token; without it, 0.
        packing: what of the memory is computed, and returned packed.
        Raises ValueError on ids, masks and shapes that do not fit, and where the config has no encoder.
        """
        self.config.need_encoder()
        keep = (keep or {}).get("encoder", {})
        x_bsd, mask_bhts = self.embed("source", source, source_mask_bs, segment_bs)
        x_bsd = self.encoder.embedding_dropout(
            x_bsd, keep.get("embedding_dropout"), training=training
        )
        return self.encoder(pack(x_bsd, packing), mask_bhts, keep, packing, training=training)

    def decode(
        self,
        target: tf.Tensor,
        memory_bsd: tf.Tensor | None = None,
        source_mask_bs: tf.Tensor | None = None,
        target_mask_bt: tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
    ) -> tf.Tensor:
        """`logits(decoder(dropout(embedding(target) + position), memory))`, `b t v`: row t scores the token after target t.

        memory_bsd: None of a decoder alone. packing: what of the logits is computed, and returned packed; memory_packing: of the memory.
        Raises ValueError on ids, masks and shapes that do not fit, and where the config has no decoder.
        """
        self.config.need_decoder()
        memory_shape = None if memory_bsd is None else memory_bsd.shape
        checks.check_memory(
            self.config.cross_attention, self.config.model_width, memory_shape, source_mask_bs
        )
        if memory_bsd is not None:
            checks.check_same_batch(source=rows(memory_bsd, memory_packing), target=target.shape)
        keep = (keep or {}).get("decoder", {})
        x_btd, self_mask_bhts = self.embed("target", target, target_mask_bt)
        x_btd = self.decoder.embedding_dropout(
            x_btd, keep.get("embedding_dropout"), training=training
        )
        if source_mask_bs is not None and memory_bsd is not None:
            checks.check_token_mask(
                "source mask",
                source_mask_bs.shape,
                source_mask_bs.dtype.name,
                rows(memory_bsd, memory_packing),
            )
        cross_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
        x_btd = pack(x_btd, packing)
        x_btd = self.decoder(
            x_btd,
            memory_bsd,
            self_mask_bhts,
            cross_mask_bhts,
            keep,
            packing,
            memory_packing,
            training=training,
        )
        return self.head(x_btd)

    def head(self, x_btd: tf.Tensor) -> tf.Tensor:
        """The logits of the decoder's result; tied, their kernel is the transposed table."""
        return self.logits(
            x_btd, self.token_embedding("target").adapted() if self.config.tie_logits else None
        )

    def token_embedding(self, side: str) -> Embedding:
        """That of source or target, which may be one: the attribute `source_embedding`."""
        return getattr(self, inputs.table(self.config, side))

    def call(
        self,
        source: Any = None,
        target: tf.Tensor | None = None,
        source_mask_bs: tf.Tensor | None = None,
        target_mask_bt: tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
        segment_bs: tf.Tensor | None = None,
        skip_padding: bool = False,
        packings: Packings | None = None,
    ) -> tf.Tensor:
        masks = {
            "source_mask_bs": source_mask_bs,
            "target_mask_bt": target_mask_bt,
            "segment_bs": segment_bs,
        }
        given = by_name(self.config, source, target, **masks)
        source, target, source_mask_bs, target_mask_bt, segment_bs = (
            given[name] for name in INPUTS
        )
        checks.check_source_given(
            self.config.encoder_layers, source, source_mask_bs=source_mask_bs, segment_bs=segment_bs
        )
        checks.check_target_given(self.config.decoder_layers, target, target_mask_bt=target_mask_bt)
        if not self.config.decoder_layers:
            return self.answer(source, source_mask_bs, keep, training, segment_bs)
        of_source, of_target = packings or Packings()
        memory_bsd = None
        if source is not None:
            source_mask_bs = attached_mask(source) if source_mask_bs is None else source_mask_bs
            checks.check_same_batch(source=source.shape, target=target.shape)
            memory_bsd = self.encode(source, source_mask_bs, keep, training, segment_bs, of_source)
            if source_mask_bs is None and self.config.padding_id is not None:
                source_mask_bs = mask.token_mask(source, self.config.padding_id)
        logits_btv = self.decode(
            target, memory_bsd, source_mask_bs, target_mask_bt, keep, training, of_target, of_source
        )
        if not skip_padding:
            return logits_btv
        if of_target is not None:
            return unpack(logits_btv, of_target)
        if target_mask_bt is None:
            target_mask_bt = mask.token_mask(target, self.config.padding_id)
        return tf.where(target_mask_bt[..., tf.newaxis], logits_btv, tf.zeros((), logits_btv.dtype))

    def states(
        self,
        source: tf.Tensor | None = None,
        target: tf.Tensor | None = None,
        source_mask_bs: tf.Tensor | None = None,
        target_mask_bt: tf.Tensor | None = None,
        segment_bs: tf.Tensor | None = None,
    ) -> dict[str, Any]:
        """The vectors between the layers and the attention weights, as `states.states`."""
        return states.states(self, source, target, source_mask_bs, target_mask_bt, segment_bs)

    def training_loss(
        self,
        source: tf.Tensor | None,
        target: tf.Tensor,
        smoothing: float = 0.0,
        total: int | tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
        packings: Packings | None = None,
    ) -> tf.Tensor:
        """The cross-entropy of every token of the target after the first, given the source and the tokens before it: a scalar.

        Labels that are the padding id do not count. Under a mixed policy the loss has the dtype of the variables.
        total: what the sum is divided by, by default the labels that count. A replica of a tf.distribute.Strategy must be given that of all
        replicas, since their gradients are summed: `total=tf.distribute.get_replica_context().all_reduce("SUM", own_count)`.
        """
        self.config.need_decoder()
        input_bt, label_bt = loss.teacher_forcing(target)
        logits_btv = tf.cast(
            self(source, input_bt, keep=keep, training=training, packings=packings),
            self.variable_dtype,
        )
        mask_bt = mask.token_mask(label_bt, self.config.padding_id)
        if packings and packings.target:
            label_bt, mask_bt = pack(label_bt, packings.target), counted(mask_bt, packings.target)
        return loss.cross_entropy(logits_btv, label_bt, mask_bt, smoothing, total)

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
        """`keras.Model.export`; without an input_signature the exported function takes int64 ids of any batch and lengths.

        LiteRT has no sine in float64, so its positions must be constants: raises ValueError where a length is not fixed. For
        `tf.lite.TFLiteConverter.from_saved_model` export fixed lengths too. Its `from_concrete_functions(functions)` takes no model beside
        them: of a model of Keras 3, any model, the variables stay unset and the output is NaN.
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
                f"a litert export must have an input_signature of fixed lengths; got lengths {lengths}"
            )
        super().export(filepath, format, verbose, input_signature, **kwargs)

    def check_ids(
        self, source: Any = None, target: Any = None, *_: Any, segment_bs: Any = None, **__: Any
    ) -> None:
        """Raises ValueError on ids outside the tables; `compiled` calls it before the graph, where ids have no values."""
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
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """What the first layer of that side (source or target) is given, before dropout, and the mask of its keys, `b 1 1 s`."""
        check_dense(token, mask_bt, segment_bt)
        mask_bt, position_bt = inputs.masked_positions(self.config, side, token, mask_bt)
        if segment_bt is not None:
            checks.check_segments(
                self.config.segments, segment_bt.shape, segment_bt.dtype.name, token.shape
            )
        x_btd = inputs.embed(self, side, token, position_bt, segment_bt)
        return x_btd, None if mask_bt is None else mask.padding_mask(mask_bt)
