"""The whole Transformer: embeddings, encoder, decoder and logits."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from . import loss, mask
from .embedding import Embedding, Logits
from .framework import Configured, keras, register
from .layers import Keep
from .positional_encoding import positional_encoding, token_positions
from .stacks import Decoder, Encoder

__all__ = ["Transformer"]


@register
class Transformer(Configured, keras.Model):
    """Logits `b t v` of the token after each target position, given the source: `decode(target, encode(source))`.

    Outside a call of the model `encode`, `decode` and `training_loss` take `training` themselves.
    `fit` and `predict` hand over one argument: a pair, source and target, or a mapping with these names. Masks are arguments: what Keras
    attaches to a tensor is not read, and none is attached to the logits.
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        width, dtype = config.model_width, self.dtype_policy
        self.source_embedding = Embedding(config.source_vocabulary, width, config.scale_embedding, dtype=dtype, name="source_embedding")
        self.encoder = Encoder(config, dtype=dtype, name="encoder")
        if config.decoder_layers:
            self.target_embedding = (
                self.source_embedding
                if config.share_embeddings
                else Embedding(config.target_vocabulary, width, config.scale_embedding, dtype=dtype, name="target_embedding")
            )
            self.decoder = Decoder(config, dtype=dtype, name="decoder")
            self.logits = Logits(width, config.target_vocabulary, config.output_bias, config.tie_logits, dtype=dtype, name="logits")

    def encode(
        self,
        source: tf.Tensor,
        source_mask_bs: tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """`memory = encoder(dropout(embedding(source) + position))`, `b s d`; source: ids `b s`, or soft one-hot rows `b s v`."""
        keep = (keep or {}).get("encoder", {})
        x_bsd, mask_bs = self._embed(self.source_embedding, "source", source, source_mask_bs)
        x_bsd = self.encoder.embedding_dropout(x_bsd, keep.get("embedding_dropout"), training=training)
        return self.encoder(x_bsd, mask.padding_mask(mask_bs), keep, training=training)

    def decode(
        self,
        target: tf.Tensor,
        memory_bsd: tf.Tensor,
        source_mask_bs: tf.Tensor | None = None,
        target_mask_bt: tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """`logits(decoder(dropout(embedding(target) + position), memory))`, `b t v`: row t scores the token after target t.

        Raises ValueError on ids, masks and shapes that do not fit, and where the config has no decoder.
        """
        self.config.need_decoder()
        checks.check_features("memory", memory_bsd.shape, self.config.model_width)
        checks.check_same_batch(source=memory_bsd.shape, target=target.shape)
        keep = (keep or {}).get("decoder", {})
        x_btd, mask_bt = self._embed(self.target_embedding, "target", target, target_mask_bt)
        x_btd = self.decoder.embedding_dropout(x_btd, keep.get("embedding_dropout"), training=training)
        if source_mask_bs is not None:
            checks.check_token_mask("source mask", source_mask_bs.shape, source_mask_bs.dtype.name, memory_bsd.shape[:2])
        cross_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
        x_btd = self.decoder(x_btd, memory_bsd, mask.padding_mask(mask_bt), cross_mask_bhts, keep, training=training)
        return self.head(x_btd)

    def head(self, x_btd: tf.Tensor) -> tf.Tensor:
        """The logits of the decoder's result; tied, their kernel is the transposed table."""
        return self.logits(x_btd, self.target_embedding.table.value if self.config.tie_logits else None)

    def call(
        self,
        source: Any,
        target: tf.Tensor | None = None,
        source_mask_bs: tf.Tensor | None = None,
        target_mask_bt: tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        source, target = _both(source, target)
        checks.check_same_batch(source=source.shape, target=target.shape)
        memory_bsd = self.encode(source, source_mask_bs, keep, training)
        if source_mask_bs is None:
            source_mask_bs = mask.token_mask(source, self.config.padding_id)
        return self.decode(target, memory_bsd, source_mask_bs, target_mask_bt, keep, training)

    def training_loss(
        self,
        source: tf.Tensor,
        target: tf.Tensor,
        smoothing: float = 0.0,
        total: int | tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """The cross-entropy of every token of the target after the first, given the source and the tokens before it: a scalar.

        Labels that are the padding id do not count. Under a mixed policy the loss has the dtype of the variables.
        """
        input_bt, label_bt = loss.teacher_forcing(target)
        logits_btv = tf.cast(self(source, input_bt, keep=keep, training=training), self.variable_dtype)
        return loss.cross_entropy(logits_btv, label_bt, mask.token_mask(label_bt, self.config.padding_id), smoothing, total)

    def compute_output_shape(self, source_shape: Any, target_shape: Any = None) -> tuple[int | None, ...]:
        return (*_both(source_shape, target_shape)[1][:2], self.config.target_vocabulary)

    def summary(self, *args: Any, **kwargs: Any) -> None:
        self.build()
        super().summary(*args, **kwargs)

    def export(
        self, filepath: Any, format: str = "tf_saved_model", verbose: Any = None, input_signature: Any = None, **kwargs: Any
    ) -> None:
        """`keras.Model.export`; without an input_signature the exported function takes int64 ids of any batch and lengths.

        LiteRT has no sine in float64, so its positions must be constants: raises ValueError where a length is not fixed. Of
        `tf.lite.TFLiteConverter` use `from_concrete_functions(functions)`: with a model of Keras 3 as second argument, any model, its
        variables stay unset and the output is NaN.
        """
        self.build()
        if input_signature is None:
            input_signature = [keras.InputSpec(shape=(None, None), dtype="int64", name=name) for name in ("source", "target")]
        lengths = [spec.shape[1] for spec in tf.nest.flatten(input_signature)]
        if format == "litert" and None in lengths:
            raise ValueError(f"a litert export must have an input_signature of fixed lengths; got lengths {lengths}")
        super().export(filepath, format, verbose, input_signature, **kwargs)

    def check_ids(self, source: Any, target: Any = None, *_: Any, **__: Any) -> None:
        """Raises ValueError on ids outside the tables; `compiled` calls it before the graph, where ids have no values."""
        source, target = _both(source, target)
        self.source_embedding.check_ids(source)
        if self.config.decoder_layers:
            self.target_embedding.check_ids(target)

    def _embed(self, embedding: Embedding, name: str, token: tf.Tensor, mask_bt: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        x_btd = embedding(token)
        if mask_bt is None:
            mask_bt = mask.token_mask(token, self.config.padding_id)
        checks.check_token_mask(f"{name} mask", mask_bt.shape, mask_bt.dtype.name, token.shape[:2])
        # No position reaches the length, so the sines of one row serve the whole batch.
        length = keras.ops.shape(token)[1]
        table_td = positional_encoding(tf.range(length), self.config.model_width, x_btd.dtype)
        return x_btd + tf.gather(table_td, token_positions(mask_bt)), mask_bt


def _both(source: Any, target: Any) -> tuple[Any, Any]:
    """Source and target (ids, or their shapes), which may come as one argument: a pair or a mapping."""
    match source:
        case {"source": first, "target": second} | [first, second] if target is None and len(source) == 2:
            return first, second
    if target is None:
        came = sorted(source) if isinstance(source, Mapping) else type(source).__name__
        raise ValueError(f"the model must be given source and target: as two arguments, a pair, or a mapping of these names; got {came}")
    return source, target
