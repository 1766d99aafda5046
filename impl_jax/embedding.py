"""Token and segment embeddings (EMBED), and the logits, which map vectors back to tokens."""

from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.typing import Dtype

from reference_numpy import TransformerConfig, checks

from .framework import einsum, id_bounds, take_rows
from .precision import upcast_half
from .projection import add_bias
from .softmax import soft_cap
from .values import Own

__all__ = ["Embedding", "Logits", "SegmentEmbedding"]


class Embedding(nnx.Module):
    """`x = multiplier sqrt(d)^scale table[token]`; soft one-hot rows `b t v` give weighted sums.

    round_scale: first rounds sqrt(d) to dtype. In half precision, rows come from a virtual float32
    copy, in which the gradient of frequent tokens adds up. Concrete ids out of range raise
    ValueError; a traced program cannot raise and returns NaN rows.
    """

    def __init__(
        self, vocabulary: int, width: int, scale: bool, round_scale: bool = False,
        multiplier: float = 1.0, *,
        dtype: Dtype | None = None, param_dtype: Dtype = jnp.float32, rngs: nnx.Rngs,
    ) -> None:  # fmt: skip
        normal = nnx.initializers.normal(width**-0.5)
        self.table = nnx.Param(normal(rngs.params(), (vocabulary, width), param_dtype))
        self.scale, self.round_scale, self.dtype = scale, round_scale, dtype
        self.multiplier = multiplier

    def __call__(self, token: jax.Array) -> jax.Array:
        self.check_ids(token)
        table_vd = self.table[...].astype(self.dtype or self.table.dtype)
        if jnp.issubdtype(token.dtype, jnp.integer):
            x_btd = take_rows(upcast_half(table_vd), token)
        else:
            x_btd = upcast_half(einsum("btv,vd->btd", token.astype(table_vd.dtype), table_vd))
        root = table_vd.shape[1] ** 0.5
        if self.round_scale:
            root = float(np.asarray(root, table_vd.dtype))
        x_btd = x_btd * root if self.scale else x_btd
        x_btd = x_btd if self.multiplier == 1 else x_btd * self.multiplier
        return x_btd.astype(table_vd.dtype)

    def check_ids(self, token: jax.Array) -> None:
        """Raises ValueError on invalid tokens, including concrete ids out of range."""
        vocabulary = self.table.get_raw_value().shape[0]
        checks.check_tokens("token", token.shape, str(token.dtype), vocabulary, *id_bounds(token))


class SegmentEmbedding(Embedding):
    """`x = table[segment]`, `b s d`: a learned vector for the sentence that a token belongs to."""

    def __init__(self, segments: int, width: int, **own: Unpack[Own]) -> None:
        super().__init__(segments, width, False, **own)

    def __call__(self, segment_bs: jax.Array) -> jax.Array:
        return super().__call__(segment_bs)

    def check_ids(self, segment_bs: jax.Array) -> None:
        shape, rows = segment_bs.shape, self.table.shape[0]
        checks.check_rows("segment", shape, str(segment_bs.dtype), rows, *id_bounds(segment_bs))


class Logits(nnx.Module):
    """`logits = scale (x W + b)`, `b t v`; with a cap, `cap tanh(logits / cap)` (SOFTCAP).

    tied: the module has no kernel; calls pass the transposed table.
    """

    def __init__(
        self, config: TransformerConfig, vocabulary: int, *, tied: bool = False, **own: Unpack[Own]
    ) -> None:
        xavier, shape = nnx.initializers.xavier_uniform(), (config.model_width, vocabulary)
        dtype = own.get("param_dtype", jnp.float32)
        if not tied:
            self.kernel = nnx.Param(xavier(own["rngs"].params(), shape, dtype))
        self.bias = nnx.Param(jnp.zeros(vocabulary, dtype)) if config.output_bias else None
        self.scale, self.cap = config.logit_scale, config.logit_cap

    def __call__(self, x_btd: jax.Array, kernel_dv: jax.Array | None = None) -> jax.Array:
        logits_btv = self.affine(x_btd, kernel_dv)
        if self.scale == 1 and self.cap is None:
            return logits_btv
        wide_btv = upcast_half(logits_btv) * self.scale
        if self.cap is not None:
            wide_btv = soft_cap(wide_btv, self.cap)
        return wide_btv.astype(logits_btv.dtype)

    def affine(self, x_btd: jax.Array, kernel_dv: jax.Array | None = None) -> jax.Array:
        """`x W + b`."""
        kernel_dv = self.kernel[...] if kernel_dv is None else kernel_dv
        checks.check_features("x", x_btd.shape, kernel_dv.shape[0])
        logits_btv = einsum("btd,dv->btv", x_btd, kernel_dv.astype(x_btd.dtype))
        if self.bias is None:
            return logits_btv
        return add_bias(logits_btv, self.bias[...].astype(x_btd.dtype))
