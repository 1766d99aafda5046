"""Defects of scaled dot-product attention."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import mask

from .defect import Defect, on_arguments, on_call
from .dropout import drawn
from .softmax import inverted

__all__ = ["DEFECTS"]

Array = np.ndarray


def _query_times(factor: Callable[[int, int, int], float]) -> Callable:
    """The attention whose query is multiplied by a function of h, k and e."""

    def times(query_bthk: Array, value_bsge: Array, **others: Any) -> dict[str, Any]:
        number = factor(query_bthk.shape[2], query_bthk.shape[3], value_bsge.shape[3])
        return {"query_bthk": query_bthk * query_bthk.dtype.type(number)}

    return on_call(times)


def _tiled_mask(query_bthk: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
    if mask_bhts is None:
        return {}
    batch, _, heads, _ = query_bthk.shape
    full = np.broadcast_to(mask_bhts, (batch, heads, *mask_bhts.shape[2:]))
    return {"mask_bhts": full.swapaxes(0, 1).reshape(full.shape)}


def _tiled_heads(query_bthk: Array, key_bsgk: Array, value_bsge: Array, **others: Any) -> dict[str, Any]:
    repeats = query_bthk.shape[2] // key_bsgk.shape[2]
    return {"key_bsgk": np.tile(key_bsgk, (1, 1, repeats, 1)), "value_bsge": np.tile(value_bsge, (1, 1, repeats, 1))}


def _masks_added(query_bthk: Array, key_bsgk: Array, mask_bhts: Any, bias_bhts: Any, causal: bool, **others: Any) -> dict[str, Any]:
    if mask_bhts is None or not causal:
        return {}
    number = query_bthk.dtype.type
    lowest = number(ml_dtypes.finfo(query_bthk.dtype).min)
    hidden = (mask_bhts, mask.causal_mask(query_bthk.shape[1], key_bsgk.shape[1]))
    with np.errstate(over="ignore"):
        padding, future = (np.where(visible, number(0), lowest) for visible in hidden)
        added = padding + future if bias_bhts is None else padding + future + bias_bhts
    return {"mask_bhts": None, "bias_bhts": added, "causal": False}


def _causal_without_mask(mask_bhts: Any, causal: bool, **others: Any) -> dict[str, Any]:
    return {"causal": causal and mask_bhts is None}


def _always_dropped(query_bthk: Array, key_bsgk: Array, keep_bhts: Any, dropout_rate: float, **others: Any) -> dict[str, Any]:
    batch, target, heads, _ = query_bthk.shape
    return {} if keep_bhts is not None else {"keep_bhts": drawn((batch, heads, target, key_bsgk.shape[1]), dropout_rate)}


_SCALE: dict[str, Any] = {
    "torch": "logits = query @ key.transpose(-2, -1) * query.size(-1) ** -0.5  # F.scaled_dot_product_attention does it",
    "tf": "logits = tf.matmul(query, key, transpose_b=True) * key.shape[-1] ** -0.5  # keras: from key_dim",
    "jax": 'logits = jnp.einsum("bthk,bshk->bhts", query, key) * query.shape[-1] ** -0.5  # jax.nn.dot_product_attention does it',
}
DEFECTS = (
    Defect(
        id="ATT1",
        title="scaled by sqrt(d) of the model",
        what="`q k^T / sqrt(h k)`, the width of all heads together, instead of `/ sqrt(k)`, the width of one.",
        shows="The weights are too flat by sqrt(h) in the logits. More than one head shows it.",
        **_SCALE,
        evidence="train-llm-from-scratch#3",
        replaces={"attention.scaled_dot_product_attention": _query_times(lambda h, k, e: h**-0.5)},
    ),
    Defect(
        id="ATT2",
        title="scaled by sqrt(e) of the value head",
        what="`q k^T / sqrt(e)` instead of `/ sqrt(k)`.",
        shows="Nothing where k = e. A value head of another size than the key head shows it.",
        **_SCALE,
        evidence="openai/gpt-2#49",
        replaces={"attention.scaled_dot_product_attention": _query_times(lambda h, k, e: (k / e) ** 0.5)},
    ),
    Defect(
        id="ATT3",
        title="the scale is missing",
        what="`softmax(q k^T)` without `/ sqrt(k)`.",
        shows="The weights are too sharp. Any input with k >= 2 shows it.",
        **_SCALE,
        evidence="transformers#20828",
        replaces={"attention.scaled_dot_product_attention": _query_times(lambda h, k, e: k**0.5)},
    ),
    Defect(
        id="ATT7",
        title="the given mask's polarity is inverted",
        what="The mask argument is negated: True = may attend meets an argument where True = ignore. The causal mask is not touched.",
        shows="Padding is attended to and nothing else. Any padding shows it.",
        torch="self.attention(x, x, x, key_padding_mask=~mask)  # nn.MultiheadAttention: True = ignore; SDPA: True = may attend",
        tf="self.attention(x, x, attention_mask=mask)  # Keras: True = may attend",
        jax="nn.dot_product_attention(query, key, value, mask=mask)  # Flax and JAX: True = may attend",
        evidence="pytorch#170415, tensorflow/text#938, tensorflow#45854",
        replaces={"attention.scaled_dot_product_attention": on_arguments(mask_bhts=inverted)},
    ),
    Defect(
        id="ATT11",
        title="two masks of finfo.min are added",
        what="`x + where(padding, 0, min) + where(causal, 0, min)`: hidden twice is -inf, hidden once is min, so a row without a key "
        "attends to what is hidden once.",
        shows="Only rows that may attend to nothing differ. Left padding together with a causal mask shows it.",
        torch="logits = logits.masked_fill(~(padding & causal), torch.finfo(logits.dtype).min)  # combine, then fill once",
        tf="logits = tf.where(padding & causal, logits, logits.dtype.min)  # combine, then fill once",
        jax="mask = nn.combine_masks(padding, causal, dtype=bool)  # combine, then fill once",
        evidence="transformers#27114",
        replaces={"attention.scaled_dot_product_attention": on_call(_masks_added)},
    ),
    Defect(
        id="ATT15",
        title="a mask per head is tiled, not interleaved with the batch",
        what="A mask of axes `(b h) t s` is read as `(h b) t s`: repeated as a whole for every head instead of row by row.",
        shows="Rows of the batch are masked with the padding of others. A batch whose rows have different padding shows it.",
        torch="mask = mask.repeat_interleave(heads, dim=0)  # not mask.repeat(heads, 1, 1)",
        tf="mask = tf.repeat(mask, heads, axis=0)  # not tf.tile(mask, [heads, 1, 1])",
        jax="mask = jnp.repeat(mask, heads, axis=0)  # not jnp.tile(mask, (heads, 1, 1))",
        evidence="CLIP4Clip#22",
        replaces={"attention.scaled_dot_product_attention": on_call(_tiled_mask)},
    ),
    Defect(
        id="CAU4",
        title="the causal mask is dropped when a padding mask is given",
        what="`causal` is ignored on the code path that takes a mask.",
        shows="Queries see the future wherever there is padding to hide. A causal input with a mask shows it.",
        torch="F.scaled_dot_product_attention(query, key, value, attn_mask=mask & causal)  # is_causal excludes a mask",
        tf="self.attention(x, x, attention_mask=mask & causal)  # combine them, rather than rely on use_causal_mask",
        jax="nn.dot_product_attention(query, key, value, mask=nn.combine_masks(mask, causal))",
        evidence="keras#23038",
        replaces={"attention.scaled_dot_product_attention": on_call(_causal_without_mask)},
    ),
    Defect(
        id="MHA10",
        title="key heads are tiled, not repeated, for grouped queries",
        what="Query head i uses key head `i mod g` instead of `i // (h/g)`.",
        shows="Nothing where g = h or g = 1. Grouped heads show it.",
        torch="key = key.repeat_interleave(heads // groups, dim=2)  # or enable_gqa=True; not key.repeat(1, 1, heads // groups, 1)",
        tf="key = tf.repeat(key, heads // groups, axis=2)  # not tf.tile",
        jax="key = jnp.repeat(key, heads // groups, axis=2)  # not jnp.tile",
        evidence="axlearn#842, onnx#7274",
        replaces={"attention.scaled_dot_product_attention": on_call(_tiled_heads)},
    ),
    Defect(
        id="DRP2",
        title="dropout of the attention weights is active in evaluation",
        what="The weights are dropped at random with the attention's dropout rate, also in evaluation: the function takes a rate, not a "
        "mode.",
        shows="Two evaluations of the same input differ. An attention dropout rate above 0 shows it.",
        torch="F.scaled_dot_product_attention(query, key, value, mask, dropout_p=self.rate if self.training else 0.0)",
        tf="weights = self.dropout(weights, training=training)",
        jax="nn.dot_product_attention(query, key, value, dropout_rate=rate, deterministic=not train)",
        evidence="pytorch#124464",
        replaces={"attention.scaled_dot_product_attention": on_call(_always_dropped)},
        random=True,
    ),
)
