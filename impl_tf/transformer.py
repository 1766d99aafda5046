"""Encoder, decoder and the whole Transformer."""

from typing import Any

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from . import loss, mask
from .backend import Configured, keras, register
from .dropout import Dropout
from .embedding import Embedding, Logits
from .layers import DecoderLayer, EncoderLayer, Keep
from .normalization import LayerNorm
from .positional_encoding import positional_encoding, token_positions

__all__ = ["Decoder", "Encoder", "Transformer"]


class _Stack(Configured, keras.layers.Layer):
    def __init__(self, config: TransformerConfig, layer: type[EncoderLayer] | type[DecoderLayer], count: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.embedding_dropout = Dropout(config.dropout_rate, dtype=self.dtype_policy, name="embedding_dropout")
        self.layers = [layer(config, dtype=self.dtype_policy, name=f"layers_{index}") for index in range(count)]
        if config.final_norm:
            self.final_norm = LayerNorm(config.model_width, config.epsilon, dtype=self.dtype_policy, name="final_norm")

    def build(self, input_shape: Any = None) -> None:
        for layer in self.layers:
            layer.build()
        if self.config.final_norm:
            self.final_norm.build()


@register
class Encoder(_Stack):
    """As the truth; `embedding_dropout` is applied by `Transformer.encode`."""

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, EncoderLayer, config.encoder_layers, **kwargs)

    def call(self, x_bsd: tf.Tensor, mask_bhts: tf.Tensor | None = None, keep: Keep | None = None) -> tf.Tensor:
        layer_keep = (keep or {}).get("layers", {})
        for index, layer in enumerate(self.layers):
            x_bsd = layer(x_bsd, mask_bhts, layer_keep.get(str(index)))
        return self.final_norm(x_bsd) if self.config.final_norm else x_bsd


@register
class Decoder(_Stack):
    """As the truth; `embedding_dropout` is applied by `Transformer.decode`."""

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, DecoderLayer, config.decoder_layers, **kwargs)

    def call(
        self,
        x_btd: tf.Tensor,
        memory_bsd: tf.Tensor,
        self_mask_bhts: tf.Tensor | None = None,
        cross_mask_bhts: tf.Tensor | None = None,
        keep: Keep | None = None,
    ) -> tf.Tensor:
        layer_keep = (keep or {}).get("layers", {})
        for index, layer in enumerate(self.layers):
            x_btd = layer(x_btd, memory_bsd, self_mask_bhts, cross_mask_bhts, layer_keep.get(str(index)))
        return self.final_norm(x_btd) if self.config.final_norm else x_btd


@register
class Transformer(Configured, keras.Model):
    """As the truth, with `encode`, `decode` and `training_loss` as methods. Outside a call of the model they take `training` themselves."""

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
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

    def build(self, input_shape: Any = None) -> None:
        self.source_embedding.build()
        self.encoder.build()
        if self.config.decoder_layers:
            if not self.config.share_embeddings:
                self.target_embedding.build()
            self.decoder.build()
            self.logits.build()

    def encode(
        self,
        source: tf.Tensor,
        source_mask_bs: tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
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
        need_decoder(self.config)
        checks.check_features("memory", memory_bsd.shape, self.config.model_width)
        checks.check_same_batch(source=memory_bsd.shape, target=target.shape)
        keep = (keep or {}).get("decoder", {})
        x_btd, mask_bt = self._embed(self.target_embedding, "target", target, target_mask_bt)
        x_btd = self.decoder.embedding_dropout(x_btd, keep.get("embedding_dropout"), training=training)
        if source_mask_bs is not None:
            checks.check_token_mask("source mask", source_mask_bs.shape, source_mask_bs.dtype.name, memory_bsd.shape[:2])
        cross_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
        x_btd = self.decoder(x_btd, memory_bsd, mask.padding_mask(mask_bt), cross_mask_bhts, keep, training=training)
        return self._logits(x_btd)

    def head(self, x_btd: tf.Tensor) -> tf.Tensor:
        """The logits of what the decoder's last layer gives."""
        return self._logits(self.decoder.final_norm(x_btd) if self.config.final_norm else x_btd)

    def call(
        self,
        source: tf.Tensor,
        target: tf.Tensor,
        source_mask_bs: tf.Tensor | None = None,
        target_mask_bt: tf.Tensor | None = None,
        keep: Keep | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
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
        input_bt, label_bt = loss.teacher_forcing(target)
        logits_btv = self(source, input_bt, keep=keep, training=training)
        return loss.cross_entropy(logits_btv, label_bt, mask.token_mask(label_bt, self.config.padding_id), smoothing, total)

    def check_ids(self, source: Any, target: Any, *_: Any, **__: Any) -> None:
        """Raises ValueError on ids outside the tables; `compiled` calls it before the graph, where ids have no values."""
        self.source_embedding.check_ids(source)
        if self.config.decoder_layers:
            self.target_embedding.check_ids(target)

    def _logits(self, x_btd: tf.Tensor) -> tf.Tensor:
        return self.logits(x_btd, self.target_embedding.table.value if self.config.tie_logits else None)

    def _embed(self, embedding: Embedding, name: str, token: tf.Tensor, mask_bt: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        x_btd = embedding(token)
        if mask_bt is None:
            mask_bt = mask.token_mask(token, self.config.padding_id)
        checks.check_token_mask(f"{name} mask", mask_bt.shape, mask_bt.dtype.name, token.shape[:2])
        # No position reaches the length, so the sines of one row serve the whole batch.
        length = keras.ops.shape(token)[1]
        table_td = positional_encoding(tf.range(length), self.config.model_width, x_btd.dtype)
        return x_btd + tf.gather(table_td, token_positions(mask_bt)), mask_bt


def need_decoder(config: TransformerConfig) -> None:
    """As the truth's function."""
    if not config.decoder_layers:
        raise ValueError("decoding needs at least one decoder layer; got decoder_layers=0")
