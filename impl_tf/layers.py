"""Encoder and decoder layers: sub-layers with their residual connections, norms and dropout (RESIDUAL)."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from .attention import MultiHeadAttention
from .dropout import Dropout
from .feed_forward import FeedForward
from .framework import Configured, SameShape, keras, register
from .normalization import LayerNorm

__all__ = ["DecoderLayer", "EncoderLayer"]

Keep: TypeAlias = Mapping[str, Any]  # keep masks, nested by site


class _Layer(Configured, SameShape, keras.layers.Layer):
    """What both layers have. Keras hands `training` down to every Dropout inside."""

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.self_attention = MultiHeadAttention(config, dtype=self.dtype_policy, name="self_attention")
        self.self_attention_dropout, self.self_attention_norm = self._after("self_attention")
        self.feed_forward = FeedForward(config, dtype=self.dtype_policy, name="feed_forward")
        self.feed_forward_dropout, self.feed_forward_norm = self._after("feed_forward")

    def build(self, input_shape: Any = None) -> None:
        for part in (self.self_attention, self.self_attention_norm, self.feed_forward, self.feed_forward_norm):
            part.build()

    def _after(self, name: str) -> tuple[Dropout, LayerNorm]:
        dtype, config = self.dtype_policy, self.config
        dropout = Dropout(config.dropout_rate, dtype=dtype, name=f"{name}_dropout")
        return dropout, LayerNorm(config.model_width, config.epsilon, dtype=dtype, name=f"{name}_norm")

    def _self_attention(self, x_btd: tf.Tensor, mask_bhts: tf.Tensor | None, causal: bool, keep: Keep) -> tf.Tensor:
        def self_attention(x_btd: tf.Tensor) -> tf.Tensor:
            keep_bhts = keep.get("self_attention", {}).get("weights_dropout")
            return self.self_attention(x_btd, x_btd, mask_bhts, causal=causal, keep_bhts=keep_bhts)

        return self._residual("self_attention", x_btd, self_attention, keep)

    def _feed_forward(self, x_btd: tf.Tensor, keep: Keep) -> tf.Tensor:
        def network(x_btd: tf.Tensor) -> tf.Tensor:
            return self.feed_forward(x_btd, keep.get("feed_forward", {}).get("hidden_dropout"))

        return self._residual("feed_forward", x_btd, network, keep)

    def _residual(self, name: str, x_btd: tf.Tensor, sublayer: Callable[[tf.Tensor], tf.Tensor], keep: Keep) -> tf.Tensor:
        norm, dropout = getattr(self, f"{name}_norm"), getattr(self, f"{name}_dropout")
        keep_btd = keep.get(f"{name}_dropout")
        if self.config.norm_placement == "pre":
            return x_btd + dropout(sublayer(norm(x_btd)), keep_btd)
        return norm(x_btd + dropout(sublayer(x_btd), keep_btd))


@register
class EncoderLayer(_Layer):
    """As the truth."""

    def call(self, x_btd: tf.Tensor, mask_bhts: tf.Tensor | None = None, keep: Keep | None = None) -> tf.Tensor:
        keep = keep or {}
        x_btd = self._self_attention(x_btd, mask_bhts, False, keep)
        return self._feed_forward(x_btd, keep)


@register
class DecoderLayer(_Layer):
    """As the truth."""

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.cross_attention = MultiHeadAttention(config, dtype=self.dtype_policy, name="cross_attention")
        self.cross_attention_dropout, self.cross_attention_norm = self._after("cross_attention")

    def build(self, input_shape: Any = None) -> None:
        super().build()
        self.cross_attention.build()
        self.cross_attention_norm.build()

    def call(
        self,
        x_btd: tf.Tensor,
        memory_bsd: tf.Tensor,
        self_mask_bhts: tf.Tensor | None = None,
        cross_mask_bhts: tf.Tensor | None = None,
        keep: Keep | None = None,
    ) -> tf.Tensor:
        checks.check_same_batch(x=x_btd.shape, memory=memory_bsd.shape)
        keep = keep or {}

        def cross_attention(query_btd: tf.Tensor) -> tf.Tensor:
            keep_bhts = keep.get("cross_attention", {}).get("weights_dropout")
            return self.cross_attention(query_btd, memory_bsd, cross_mask_bhts, keep_bhts=keep_bhts)

        x_btd = self._self_attention(x_btd, self_mask_bhts, True, keep)
        x_btd = self._residual("cross_attention", x_btd, cross_attention, keep)
        return self._feed_forward(x_btd, keep)

    def step(
        self, x_btd: tf.Tensor, cache: Mapping[str, Any], place: tf.Tensor, self_mask_bhts: tf.Tensor, cross_mask_bhts: tf.Tensor | None
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """As the truth's `decoder_layer_step`; the keys and values of x are written into the cache from that place on."""
        grown = dict(cache)

        def self_attention(x_btd: tf.Tensor) -> tf.Tensor:
            query_bthk, key_btgk, value_btge = self.self_attention.queries_keys_and_values(x_btd)
            key_bgks, value_bgse = cache["self_attention"]
            # In place within a graph, where nothing else reads the old ones: not even a reshape may stand between the cache and its use.
            key_bgks = keras.ops.slice_update(key_bgks, tf.stack([0, 0, 0, place]), tf.transpose(key_btgk, [0, 2, 3, 1]))
            value_bgse = keras.ops.slice_update(value_bgse, tf.stack([0, 0, place, 0]), tf.transpose(value_btge, [0, 2, 1, 3]))
            grown["self_attention"] = key_bgks, value_bgse
            return self.self_attention.attend_cached(query_bthk, key_bgks, value_bgse, self_mask_bhts)

        def cross_attention(x_btd: tf.Tensor) -> tf.Tensor:
            query_bthk, (key_bgks, value_bgse) = self.cross_attention.queries(x_btd), cache["cross_attention"]
            return self.cross_attention.attend_cached(query_bthk, key_bgks, value_bgse, cross_mask_bhts)

        x_btd = self._residual("self_attention", x_btd, self_attention, {})
        x_btd = self._residual("cross_attention", x_btd, cross_attention, {})
        return self._residual("feed_forward", x_btd, self.feed_forward, {}), grown
