"""A copy of a model for inference, with fused projections of one input."""

from collections.abc import Iterator

import tensorflow as tf

from reference_numpy import TransformerConfig

from .. import weights
from ..attention import MultiHeadAttention, clipped
from ..embedding import capped
from ..experts import MixtureOfExperts, Stacked
from ..feed_forward import FeedForward
from ..framework import keras, other_layers
from ..inputs import InputLayers
from ..kernels.int8 import Int8Projection
from ..kernels.projection import FusedProjection
from ..layers import DecoderLayer
from ..projection import Projection
from ..rotary import Rotation
from ..transformer import Transformer
from ..values import Heads
from .int8_experts import Int8Stacked

__all__ = ["FusedAttention", "FusedFeedForward", "fused", "refresh"]

# Parts of the fused projections; every other projection is made from its namesake.
FUSED = {
    "query_key_value": ("query", "key", "value"),
    "key_value": ("key", "value"),
    "gate_hidden": ("gate", "hidden"),
}


class FusedAttention(MultiHeadAttention):
    """Multi-head attention whose query, key and value (self-attention), or key and value
    (cross-attention), are one product.

    `fused` makes it from a model's own attention, which is the one saved.
    """

    def __init__(
        self, given: MultiHeadAttention, of_itself: bool, int8: bool = False, **kwargs: object
    ) -> None:
        super().__init__(given.config, given.scores, name=given.name, **kwargs)
        self.of_itself, kind = of_itself, Int8Projection if int8 else FusedProjection
        if of_itself:
            self.query_key_value = kind(self.query, self.key, self.value, name="query_key_value")
            del self.query
        else:
            self.key_value = kind(self.key, self.value, name="key_value")
        del self.key, self.value
        if int8:
            _to_int8(self, "query", "output_projection")

    def project(
        self, query_btd: tf.Tensor, memory_bsd: tf.Tensor, rotation: Rotation | None = None
    ) -> Heads:
        """In self-attention, memory_bsd equals query_btd and is not read."""
        if not self.of_itself:
            return super().project(query_btd, memory_bsd, rotation)
        query_bthk, key_btgk, value_btge = self.query_key_value.separate(query_btd)
        query_bthk = self.query_key_norm(query_bthk, self.query_norm, rotation)
        key_btgk = self.query_key_norm(key_btgk, self.key_norm, rotation)
        value_btge = clipped(value_btge, self.config.query_key_value_clip)
        return Heads(query_bthk, key_btgk, value_btge, self.sink)

    def keys_and_values(
        self, memory_bsd: tf.Tensor, rotation: Rotation | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        key_bsgk, value_bsge = self.key_value.separate(memory_bsd)
        key_bsgk = self.query_key_norm(key_bsgk, self.key_norm, rotation)
        return key_bsgk, clipped(value_bsge, self.config.query_key_value_clip)


class FusedFeedForward(FeedForward):
    """A gated feed-forward whose gate and hidden layer are one product, made by `fused`."""

    def __init__(self, config: TransformerConfig, int8: bool = False, **kwargs: object) -> None:
        super().__init__(config, **kwargs)
        kind = Int8Projection if int8 else FusedProjection
        self.gate_hidden = kind(self.gate, self.hidden, name="gate_hidden")
        del self.gate, self.hidden

    def gate_and_hidden(self, x_btd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        gate_btf, hidden_btf = self.gate_hidden.separate(x_btd)
        return gate_btf, hidden_btf


class Int8Logits(Int8Projection):
    """Logits in int8, with the config's scale and cap."""

    def __init__(self, config: TransformerConfig, **kwargs: object) -> None:
        width, vocabulary = (config.model_width,), (config.target_vocabulary,)
        super().__init__(Projection(width, vocabulary, config.output_bias, **kwargs), name="logits")
        self.config = config

    def call(self, x_btd: tf.Tensor, table_vd: tf.Tensor | None = None) -> tf.Tensor:
        logits_btv = super().call(x_btd, table_vd)
        return capped(logits_btv, self.config.logit_scale, self.config.logit_cap)


def fused(model: Transformer, dtype: str | None = None) -> Transformer:
    """Copies the model for whole passes, steps and searches.

    dtype: of weights and computation; default, the model's. int8: projections are int8, the rest is
    float32 (INT8). Raises ValueError without a decoder, and on layers of other classes, which the
    copy would lack.
    """
    model.config.need_decoder()
    if others := other_layers(model):
        found = ", ".join(f"{layer.name}, a {type(layer).__name__}" for layer in others)
        raise ValueError(
            f"decoding needs every layer to be one of {__name__.partition('.')[0]} with its own "
            f"call; got {found}"
        )
    if int8 := dtype is not None and tf.as_dtype(dtype) == tf.int8:
        dtype = "float32"
    if dtype is not None and not tf.as_dtype(dtype).is_floating:
        raise ValueError(f"dtype must be floating or int8; got {tf.as_dtype(dtype).name}")
    config, copy = model.config, Transformer(model.config, dtype=dtype or model.compute_dtype)
    options, in_encoder = {"int8": int8, "dtype": copy.dtype_policy}, int8 and config.encoder_layers
    for layer in [*copy.decoder.layers, *(copy.encoder.layers if in_encoder else ())]:
        of_itself = isinstance(layer, DecoderLayer)
        layer.self_attention = FusedAttention(layer.self_attention, of_itself, **options)
        if of_itself and config.cross_attention:
            layer.cross_attention = FusedAttention(layer.cross_attention, False, **options)
        if config.gated_feed_forward and not config.has_experts(layer.layer):
            layer.feed_forward = FusedFeedForward(config, **options, name="feed_forward")
        if int8:
            for part in _networks(layer.feed_forward):
                _to_int8(part, "gate", "hidden", "output_projection")
    if int8:
        copy.logits = Int8Logits(config, dtype=copy.dtype_policy)
    copy.build()
    refresh(copy, model)
    return copy


def refresh(copy: Transformer, model: Transformer) -> None:
    """Copies the model's current weights into a copy made by `fused`."""
    for name, value in weights.values(model, model.config).items():
        if (own := weights.at(copy, name)) is not None:
            own.assign(tf.cast(value, own.dtype))
    for part, given in zip(_parts(copy), _parts(model), strict=True):
        for own in vars(part).values():
            if isinstance(own, FusedProjection | Int8Stacked):
                each = [getattr(given, name) for name in FUSED.get(own.name, (own.name,))]
                own.copy([one.adapted() for one in each], [one.bias for one in each])
    if isinstance(copy.logits, Int8Projection):
        if model.config.tie_logits:
            kernel = tf.transpose(InputLayers.of(model, "target").embedding.adapted())
        else:
            kernel = model.logits.adapted()
        copy.logits.copy([kernel], [model.logits.bias])


def _parts(model: Transformer) -> Iterator[keras.layers.Layer]:
    """Yields the attentions and feed-forward networks of all layers."""
    for stack in ("encoder", "decoder"):
        for layer in getattr(model, stack).layers if hasattr(model, stack) else ():
            names = ("self_attention", "cross_attention")
            yield from (getattr(layer, name) for name in names if hasattr(layer, name))
            yield from _networks(layer.feed_forward)


def _networks(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Returns the parts of a mixture of experts, or another feed-forward itself."""
    if not isinstance(layer, MixtureOfExperts):
        return [layer]
    return [layer.experts, *([] if layer.shared is None else [layer.shared])]


def _to_int8(layer: keras.layers.Layer, *names: str) -> None:
    """Replaces projections of the layer by int8 ones."""
    for name in names:
        if hasattr(layer, name):
            given = getattr(layer, name)
            kind = Int8Stacked if isinstance(given, Stacked) else Int8Projection
            setattr(layer, name, kind(given, name=name))
