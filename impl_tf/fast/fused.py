"""A model as the steps of decoding run it: a copy of its weights, with the projections of one input in one kernel."""

from typing import Any

import tensorflow as tf

from reference_numpy import TransformerConfig

from .. import weights
from ..attention import MultiHeadAttention
from ..transformer import Transformer
from .projection import FusedProjection

__all__ = ["FusedAttention", "fused", "refresh"]


class FusedAttention(MultiHeadAttention):
    """Multi-head attention whose query, key and value are one product (self-attention), or key and value (cross-attention).

    `fused` makes it of a model's own attention, which is what is saved.
    """

    def __init__(self, config: TransformerConfig, of_itself: bool, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.of_itself = of_itself
        if of_itself:
            self.query_key_value = FusedProjection(self.query, self.key, self.value, name="query_key_value")
            del self.query
        else:
            self.key_value = FusedProjection(self.key, self.value, name="key_value")
        del self.key, self.value

    def queries(self, query_btd: tf.Tensor) -> tf.Tensor:
        return self.project(query_btd)[0] if self.of_itself else self.query(query_btd)

    def keys_and_values(self, memory_bsd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        key_bsgk, value_bsge = self.project(memory_bsd)[1:] if self.of_itself else self.key_value(memory_bsd)
        return key_bsgk, value_bsge

    def project(self, x_btd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        query_bthk, key_btgk, value_btge = self.query_key_value(x_btd)
        return query_bthk, key_btgk, value_btge


def fused(model: Transformer, dtype: str | None = None) -> Transformer:
    """A copy of the model, for steps and searches.

    dtype: every weight is rounded to it and the copy computes in it; by default both are the dtype that the model computes in.
    Raises ValueError where there is no decoder.
    """
    model.config.need_decoder()
    if dtype is not None and not tf.as_dtype(dtype).is_floating:
        raise ValueError(f"dtype must be a floating one; got {tf.as_dtype(dtype).name}: int8 needs impl_torch")
    copy = Transformer(model.config, dtype=dtype or model.compute_dtype)
    for layer in copy.decoder.layers:
        layer.self_attention = FusedAttention(model.config, True, dtype=copy.dtype_policy, name="self_attention")
        if model.config.cross_attention:
            layer.cross_attention = FusedAttention(model.config, False, dtype=copy.dtype_policy, name="cross_attention")
    copy.pack_from = model.pack_from
    copy.build()
    refresh(copy, model)
    return copy


def refresh(copy: Transformer, model: Transformer) -> None:
    """The weights that the model has now, in a copy that `fused` made of it."""
    for name, variable in weights.variables(model, model.config).items():
        if (own := weights.at(copy, name)) is not None:
            own.assign(tf.cast(variable, own.dtype))
    for layer, given in zip(copy.decoder.layers, model.decoder.layers, strict=True):
        of_itself = given.self_attention
        layer.self_attention.query_key_value.copy((of_itself.query, of_itself.key, of_itself.value))
        if model.config.cross_attention:
            layer.cross_attention.key_value.copy((given.cross_attention.key, given.cross_attention.value))
