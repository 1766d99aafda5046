"""Defects of scaled dot-product attention."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import mask

from .defect import Defect, on_arguments, on_call
from .dropout import drawn
from .mask import FUTURE
from .softmax import inverted

__all__ = ["DEFECTS"]

Array = np.ndarray
ATTENTION = "attention.scaled_dot_product_attention"


def _tiled_mask(query_bthk: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
    if mask_bhts is None:
        return {}
    batch, _, heads, _ = query_bthk.shape
    full = np.broadcast_to(mask_bhts, (batch, heads, *mask_bhts.shape[2:]))
    return {"mask_bhts": full.swapaxes(0, 1).reshape(full.shape)}


def _of_first_row(mask_bhts: Any) -> Any:
    return None if mask_bhts is None else np.broadcast_to(mask_bhts[:1], mask_bhts.shape)


def _first_head_alone(query_bthk: Array, mask_bhts: Any, **others: Any) -> dict[str, Any]:
    if mask_bhts is None or mask_bhts.shape[1] != 1:
        return {}
    return {"mask_bhts": mask_bhts | (np.arange(query_bthk.shape[2]) > 0)[:, None, None]}


def _tiled_heads(query_bthk: Array, key_bsgk: Array, value_bsge: Array, **others: Any) -> dict[str, Any]:
    repeats = query_bthk.shape[2] // key_bsgk.shape[2]
    return {"key_bsgk": np.tile(key_bsgk, (1, 1, repeats, 1)), "value_bsge": np.tile(value_bsge, (1, 1, repeats, 1))}


def _tiled(argument: str) -> Callable[..., dict[str, Any]]:
    """Heads of one argument tiled, of the other repeated."""

    def change(query_bthk: Array, key_bsgk: Array, value_bsge: Array, **others: Any) -> dict[str, Any]:
        repeats = query_bthk.shape[2] // key_bsgk.shape[2]
        repeated = {"key_bsgk": np.repeat(key_bsgk, repeats, axis=2), "value_bsge": np.repeat(value_bsge, repeats, axis=2)}
        return repeated | {argument: _tiled_heads(query_bthk, key_bsgk, value_bsge)[argument]}

    return change


def _regrouped(tiled: bool) -> Callable:
    """The attention whose heads are merged group by group, after a split in which the group of query head i is `i mod g`, or is not."""

    def altered(original: Callable, query_bthk: Array, key_bsgk: Array, value_bsge: Array, *rest: Any, **options: Any) -> Any:
        heads, groups = query_bthk.shape[2], key_bsgk.shape[2]
        order = np.arange(heads).reshape(-1, groups).T.ravel() if tiled else np.arange(heads).reshape(groups, -1).T.ravel()
        own = _tiled_heads(query_bthk, key_bsgk, value_bsge) if tiled else {"key_bsgk": key_bsgk, "value_bsge": value_bsge}
        result = original(query_bthk, own["key_bsgk"], own["value_bsge"], *rest, **options)
        return (result[0][:, :, order], result[1][:, order]) if isinstance(result, tuple) else result[:, :, order]

    return altered


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


def _causal_where_masked(masked: bool) -> Callable:
    """The attention that is causal where a mask is given, or only where none is."""
    return on_call(lambda mask_bhts, causal, **others: {"causal": causal and (mask_bhts is not None) == masked})


def _always_dropped(query_bthk: Array, key_bsgk: Array, keep_bhts: Any, dropout_rate: float, **others: Any) -> dict[str, Any]:
    batch, target, heads, _ = query_bthk.shape
    return {} if keep_bhts is not None else {"keep_bhts": drawn((batch, heads, target, key_bsgk.shape[1]), dropout_rate)}


DEFECTS = (
    Defect(
        id="ATT7",
        title="the given mask's polarity is inverted",
        what="The mask argument is negated: True = may attend meets an argument where True = ignore. The causal mask is not touched.",
        shows="Padding is attended to and nothing else. Any padding shows it.",
        torch="self.attention(x, x, x, key_padding_mask=~mask)  # nn.MultiheadAttention: True = ignore; SDPA: True = may attend",
        tf="self.attention(x, x, attention_mask=mask)  # Keras: True = may attend",
        jax="nn.dot_product_attention(query, key, value, mask=mask)  # Flax and JAX: True = may attend",
        evidence="pytorch#170415, tensorflow/text#938, tensorflow#45854",
        replaces={ATTENTION: on_arguments(mask_bhts=inverted)},
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
        replaces={ATTENTION: on_call(_masks_added)},
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
        replaces={ATTENTION: on_call(_tiled_mask)},
    ),
    Defect(
        id="CAU4",
        title="the causal mask is dropped when a padding mask is given",
        what="`causal` is ignored on the code path that takes a mask.",
        shows="Queries see the future wherever there is padding to hide. A causal input with a mask shows it.",
        torch="F.scaled_dot_product_attention(query, key, value, attn_mask=mask & causal)  # is_causal excludes a mask",
        tf="self.attention(x, x, attention_mask=mask & causal)  # combine them, rather than rely on use_causal_mask",
        jax="nn.dot_product_attention(query, key, value, mask=nn.combine_masks(mask, causal))",
        family=FUTURE,
        evidence="keras#23038",
        replaces={ATTENTION: _causal_where_masked(False)},
    ),
    Defect(
        id="CAU9",
        title="the causal mask is dropped when no padding mask is given",
        what="`causal` is ignored on the code path that takes no mask.",
        shows="Queries see the future where there is no padding mask. A causal input without a mask shows it.",
        torch="F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)  # with a mask: mask & causal",
        tf="self.attention(x, x, attention_mask=mask, use_causal_mask=True)  # with and without a mask",
        jax="nn.dot_product_attention(query, key, value, mask=nn.combine_masks(mask, causal))  # None is allowed",
        family=FUTURE,
        evidence="xformers#103",
        replaces={ATTENTION: _causal_where_masked(True)},
    ),
    Defect(
        id="MHA10",
        title="key heads are tiled, not repeated, for grouped queries",
        what="Query head i uses key head `i mod g` instead of `i // (h/g)`.",
        shows="Nothing where g = h or g = 1. Grouped heads show it.",
        variants={
            "value heads, not key heads, are tiled, not repeated, for grouped queries": {ATTENTION: on_call(_tiled("value_bsge"))},
            "key heads, not value heads, are tiled, not repeated, for grouped queries": {ATTENTION: on_call(_tiled("key_bsgk"))},
            "query heads are split as (h/g, g) instead of (g, h/g), and merged group by group": {ATTENTION: _regrouped(True)},
            "the outputs of grouped heads are merged as (h/g, g) instead of (g, h/g)": {ATTENTION: _regrouped(False)},
        },
        torch="key = key.repeat_interleave(heads // groups, dim=2)  # or enable_gqa=True; not key.repeat(1, 1, heads // groups, 1)",
        tf="key = tf.repeat(key, heads // groups, axis=2)  # not tf.tile",
        jax="key = jnp.repeat(key, heads // groups, axis=2)  # not jnp.tile",
        evidence="axlearn#842, onnx#7274",
        replaces={ATTENTION: on_call(_tiled_heads)},
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
        replaces={ATTENTION: on_call(_always_dropped)},
        random=True,
    ),
    Defect(
        id="ATT36",
        title="every row has the mask of the batch's first row",
        what="`mask[0]` broadcasts over the batch: one axis is dropped where the mask is given its axes of heads and queries.",
        shows="Rows are masked with the padding of the first. A batch whose rows have different padding shows it.",
        torch="mask = mask[:, None, None, :]  # b 1 1 s; not mask[0]",
        tf="mask = mask[:, tf.newaxis, tf.newaxis, :]  # b 1 1 s; not mask[0]",
        jax="mask = mask[:, None, None, :]  # b 1 1 s; not mask[0]",
        variants={"the mask hides keys of the first head alone": {ATTENTION: on_call(_first_head_alone)}},
        evidence="derived, not reported",
        replaces={ATTENTION: on_arguments(mask_bhts=_of_first_row)},
    ),
)
