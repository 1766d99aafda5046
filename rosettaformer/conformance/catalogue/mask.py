"""Defects of the padding mask and the causal mask."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .defect import Defect, on_result
from .fills import uniform_when_empty

__all__ = ["DEFECTS", "FUTURE", "top_left"]

FUTURE = "queries see the keys after them"


def _diagonal(offset: int) -> Callable:
    """The causal mask whose diagonal lies this many keys to the right: `j <= i + (s - t) + offset`."""
    return lambda original, target_length, source_length: np.tri(
        target_length, source_length, source_length - target_length + offset, dtype=bool
    )[None, None]


def _from_diagonal(original: Callable, target_length: int, source_length: int) -> np.ndarray:
    return ~np.tri(target_length, source_length, source_length - target_length - 1, dtype=bool)[None, None]


def _either(original: Callable, mask_bhts: Any, other_bhts: Any) -> Any:
    return original(mask_bhts, other_bhts) if mask_bhts is None or other_bhts is None else mask_bhts | other_bhts


def top_left(original: Callable, target_length: int, source_length: int) -> np.ndarray:
    """The causal mask whose first query is aligned with the first key."""
    longest = max(target_length, source_length)
    return original(longest, longest)[:, :, :target_length, :source_length]


DEFECTS = (
    Defect(
        id="ATT9",
        title="the padding mask is inferred from embedding plus position, and hides nothing",
        what="`mask = (embedding + position) != 0`: the padding's embedding may be zero, its sum with the position is not.",
        shows="Padding is attended to as if it were real, in the encoder, the decoder and the cross-attention. Any padding shows it.",
        torch="mask = token != padding_id  # from the ids, before the embedding",
        tf="mask = tf.not_equal(token, padding_id)  # from the ids, before the embedding",
        jax="mask = token != padding_id  # from the ids, before the embedding",
        evidence="Kyubyong/transformer#33",
        replaces={"mask.padding_mask": on_result(np.ones_like)},
    ),
    Defect(
        id="CAU1",
        title="the diagonal is off by one: a query cannot see itself",
        what="`j < i + (s - t)` instead of `j <= i + (s - t)`.",
        shows="The first query sees nothing, every other one lacks its own position. Any causal input shows it.",
        torch="mask = torch.ones(t, s, dtype=torch.bool).tril(diagonal=s - t)",
        tf="mask = tf.range(s) <= tf.range(t)[:, None] + s - t",
        jax="mask = jnp.tri(t, s, k=s - t, dtype=bool)",
        variants={
            "the diagonal is off by one, and a query without a key attends to all": {
                "mask.causal_mask": _diagonal(-1),
                "softmax.softmax": uniform_when_empty,
            }
        },
        evidence="pbloem/former#10",
        replaces={"mask.causal_mask": _diagonal(-1)},
    ),
    Defect(
        id="CAU8",
        title="the diagonal is off by one: a query sees the next token",
        what="`j <= i + 1 + (s - t)` instead of `j <= i + (s - t)`.",
        shows="The training loss falls towards 0, and the model generates nonsense. Any causal input shows it.",
        torch="mask = torch.ones(t, s, dtype=torch.bool).tril(diagonal=s - t)  # hidden: triu(diagonal=s - t + 1)",
        tf="mask = tf.range(s) <= tf.range(t)[:, None] + s - t",
        jax="mask = jnp.tri(t, s, k=s - t, dtype=bool)",
        evidence="flashinfer#348",
        replaces={"mask.causal_mask": _diagonal(1)},
    ),
    Defect(
        id="CAU2",
        title="the look-ahead mask is inverted: a query sees the future alone",
        what="`j > i + (s - t)`, or `j >= i + (s - t)`: the other triangle.",
        shows="The last query sees nothing, the first everything after it. Any causal input shows it.",
        torch="mask = torch.ones(t, s, dtype=torch.bool).tril(s - t)  # True = may attend, for SDPA; MultiheadAttention takes ~mask",
        tf="mask = tf.linalg.band_part(tf.ones([t, t], tf.bool), -1, 0)  # True = may attend",
        jax="mask = jnp.tri(t, s, k=s - t, dtype=bool)  # True = may attend",
        variants={
            "the look-ahead mask is inverted: a query sees itself and the future": {"mask.causal_mask": _from_diagonal},
            "the look-ahead mask is inverted, and a query without a key attends to all": {
                "mask.causal_mask": on_result(np.logical_not),
                "softmax.softmax": uniform_when_empty,
            },
        },
        evidence="guide",
        replaces={"mask.causal_mask": on_result(np.logical_not)},
    ),
    Defect(
        id="CAU3",
        title="the mask is aligned top-left instead of bottom-right",
        what="`j <= i` instead of `j <= i + (s - t)`: the first query is aligned with the first key.",
        shows="Equal lengths agree; a step on cached keys sees the first key alone. Lengths that differ show it.",
        torch="mask = causal_lower_right(t, s)  # torch.nn.attention.bias; is_causal=True aligns top-left",
        tf="mask = tf.range(s) <= tf.range(t)[:, None] + s - t  # use_causal_mask=True aligns top-left",
        jax="mask = jnp.tri(t, s, k=s - t, dtype=bool)  # is_causal=True aligns top-left",
        evidence="pytorch#108108, mlx#2967, flash-attention#517",
        replaces={"mask.causal_mask": top_left},
    ),
    Defect(
        id="CAU6",
        title="there is no causal mask",
        what="Every query sees every key: `is_causal`, `is_decoder` or the look-ahead mask is not passed on.",
        shows="A token's logits change with the tokens after it, and the training loss falls towards 0. Any causal input shows it.",
        torch="F.scaled_dot_product_attention(query, key, value, is_causal=True)  # the default is False",
        tf="self.attention(x, x, use_causal_mask=True)  # the default is False",
        jax="jax.nn.dot_product_attention(query, key, value, is_causal=True)  # the default is False",
        family=FUTURE,
        evidence="transformers#48745, xformers#1135",
        replaces={"mask.causal_mask": on_result(np.ones_like)},
    ),
    Defect(
        id="ATT22",
        title="two masks are combined with or",
        component="combine_masks",
        what="`mask | other` of masks whose True = may attend: what one of them allows is seen.",
        shows="Padding is seen where it is not in the future, and the future where it is no padding. Two masks show it.",
        torch="mask = padding & causal  # True = may attend; of masks whose True = ignore, padding | causal",
        tf="mask = padding & causal  # True = may attend; tf.maximum only of masks whose 1 = ignore",
        jax="mask = nn.combine_masks(padding, causal)  # and; True = may attend",
        evidence="derived, not reported",
        replaces={"mask.combine_masks": _either},
    ),
)
