"""Token and segment embeddings (EMBED), and the logits, which map vectors back to tokens."""

from collections.abc import Sequence

import tensorflow as tf

from reference_numpy import TransformerConfig, checks

from .framework import Configured, id_bounds, ids, keras, register, sizes
from .precision import upcast_half
from .projection import Adapted, add_bias, xavier_uniform
from .softmax import soft_cap

__all__ = ["Embedding", "Logits", "SegmentEmbedding"]


class Table(Adapted):
    """A lookup table. In a graph, where ids have no values, an id out of range gives NaN."""

    matrix = "table"
    adapters = ("lora_embeddings_a", "lora_embeddings_b")

    def __init__(self, rows: int, width: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.rows, self.width = rows, width

    def build(self, input_shape: object = None) -> None:
        normal = keras.initializers.RandomNormal(stddev=self.width**-0.5)
        shape = self.rows, self.width
        self.table = self.add_weight(shape=shape, initializer=normal, name="table")

    def look_up(self, index_bt: tf.Tensor) -> tf.Tensor:
        """`table[index]`, `b t d`."""
        if index_bt.dtype not in (tf.int32, tf.int64):
            index_bt = tf.cast(index_bt, tf.int64)
        x_btd = tf.gather(self.adapted(), index_bt)
        if not tf.is_symbolic_tensor(index_bt):
            return x_btd
        # For ids out of range, XLA takes the nearest row, a GPU zeros; a graph on a CPU stops.
        inside_bt1 = tf.expand_dims((index_bt >= 0) & (index_bt < self.rows), -1)
        return tf.where(inside_bt1, x_btd, tf.constant(float("nan"), x_btd.dtype))

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return (*input_shape[:2], self.width)

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "rows": self.rows, "width": self.width}


@register
class Embedding(Table):
    """`x = multiplier sqrt(d)^scale table[token]`; soft one-hot rows `b t v` give weighted sums of
    rows.

    round_scale: first rounds sqrt(d) to the dtype of x. Ids out of range raise ValueError if their
    values are known.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        scale: bool,
        round_scale: bool = False,
        multiplier: float = 1.0,
        **kwargs: object,
    ) -> None:
        super().__init__(vocabulary, width, **kwargs)
        self.vocabulary, self.multiplier = vocabulary, multiplier
        self.scale, self.round_scale = scale, round_scale

    def check_ids(self, token: tf.Tensor, **_: object) -> None:
        """Raises ValueError on ids outside the table, other dtypes and other axes."""
        checks.check_tokens(
            "token", token.shape, token.dtype.name, self.vocabulary, *id_bounds(token)
        )

    def call(self, token: tf.Tensor) -> tf.Tensor:
        token = ids(token)
        self.check_ids(token)
        soft = not token.dtype.is_integer
        x_btd = tf.tensordot(token, self.adapted(), axes=1) if soft else self.look_up(token)
        if not self.scale and self.multiplier == 1:
            return x_btd
        wide_btd, root = upcast_half(x_btd), self.width**0.5
        if self.scale:
            wide_btd *= upcast_half(tf.constant(root, x_btd.dtype)) if self.round_scale else root
        if self.multiplier != 1:
            wide_btd *= self.multiplier
        return tf.cast(wide_btd, x_btd.dtype)

    def get_config(self) -> dict[str, object]:
        sizes = {"vocabulary": self.vocabulary, "width": self.width, "multiplier": self.multiplier}
        scale = {"scale": self.scale, "round_scale": self.round_scale}
        return {**keras.layers.Layer.get_config(self), **sizes, **scale}


@register
class SegmentEmbedding(Table):
    """`x = table[segment]`, `b s d`: a learned vector for the sentence that a token belongs to."""

    def check_ids(self, segment_bs: tf.Tensor, **_: object) -> None:
        """Raises ValueError on segments outside the table, other dtypes and other axes."""
        checks.check_rows(
            "segment", segment_bs.shape, segment_bs.dtype.name, self.rows, *id_bounds(segment_bs)
        )

    def call(self, segment_bs: tf.Tensor) -> tf.Tensor:
        self.check_ids(segment_bs)
        return self.look_up(segment_bs)


@register
class Logits(Configured, Adapted):
    """`logits = scale (x W + b)`, `b t v`; with a cap, `cap tanh(logits / cap)` (SOFTCAP).

    tied: the layer has no kernel; calls pass the embedding's table `v d`, whose transpose is W.
    """

    def __init__(
        self, config: TransformerConfig, vocabulary: int, tied: bool = False, **kwargs: object
    ) -> None:
        super().__init__(config, **kwargs)
        self.vocabulary, self.tied = vocabulary, tied

    def build(self, input_shape: object = None) -> None:
        width, self.bias = self.config.model_width, None
        if not self.tied:
            shape = width, self.vocabulary
            first = xavier_uniform(*shape)
            self.kernel = self.add_weight(shape=shape, initializer=first, name="kernel")
        if self.config.output_bias:
            self.bias = self.add_weight(shape=(self.vocabulary,), initializer="zeros", name="bias")

    def call(self, x_btd: tf.Tensor, table_vd: tf.Tensor | None = None) -> tf.Tensor:
        checks.check_features("x", x_btd.shape, self.config.model_width)
        batch, target, width = sizes(x_btd)
        # One matrix product over all positions is faster than a batched one, and uses a tied table
        # without transposing a copy.
        x_nd = tf.reshape(x_btd, [batch * target, width])
        kernel = table_vd if self.tied else self.adapted()
        logits_nv = tf.matmul(x_nd, kernel, transpose_b=self.tied)
        logits_nv = logits_nv if self.bias is None else add_bias(logits_nv, self.bias)
        logits_nv = capped(logits_nv, self.config.logit_scale, self.config.logit_cap)
        return tf.reshape(logits_nv, [batch, target, self.vocabulary])

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return (*input_shape[:2], self.vocabulary)

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "vocabulary": self.vocabulary, "tied": self.tied}


def capped(x: tf.Tensor, scale: float, cap: float | None) -> tf.Tensor:
    """Applies scale and cap to logits; half precision rounds once."""
    if scale == 1 and cap is None:
        return x
    wide = upcast_half(x) * scale
    return tf.cast(wide if cap is None else soft_cap(wide, cap), x.dtype)
