"""Cases of scaled dot-product and multi-head attention."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ..case import Case
from .build import B, S, T, config, left_padding, make, ragged, rng

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    """Every kind of mask, with the weights asked for and not; S != T, k != e, grouped heads, one position and 200."""
    yield from _dot_product_cases()
    yield from _multi_head_cases()


def _masks() -> dict[str, np.ndarray]:
    full = rng("attention mask").random((B, 3, T, S)) < 0.6
    full[1, 2, 3] = False
    return {
        "ragged": ragged(B, S)[:, None, None],
        "left_padding": left_padding(B, S)[:, None, None],
        "per_query": full[:1, :1],
        "per_head": full,
    }


def _dot_product(name: str, catches: str = "", batch: int = B, t: int = T, s: int = S, h: int = 3, g: int = 3, **inputs: Any) -> Case:
    shapes = {"query_bthk": (batch, t, h, 5), "key_bsgk": (batch, s, g, 5), "value_bsge": (batch, s, g, 11)}
    case_config = config(heads=h, key_value_heads=g)
    return make("scaled_dot_product_attention", name, case_config, catches, **(shapes | inputs))


def _dot_product_cases() -> Iterator[Case]:
    scale = "ATT1 ATT2 ATT3 ATT4"
    yield _dot_product("plain", scale)
    yield _dot_product("plain_weights", scale, return_weights=True)
    for name, mask in _masks().items():
        catches = {"left_padding": "ATT7 ATT13", "per_head": "ATT5 ATT6 ATT7 ATT13 ATT15"}.get(name, "ATT5 ATT6 ATT7")
        yield _dot_product(name, catches, mask_bhts=mask)
        yield _dot_product(f"{name}_weights", catches, mask_bhts=mask, return_weights=True)
    for name, t, s in (("causal", T, T), ("causal_cached", T, S), ("causal_more_queries", S, T), ("causal_step", 1, S)):
        catches = {"causal": "CAU1 CAU2", "causal_step": "CAU3"}.get(name, "CAU1 CAU2 CAU3")
        yield _dot_product(name, catches, t=t, s=s, causal=True)
        yield _dot_product(f"{name}_weights", catches, t=t, s=s, causal=True, return_weights=True)
    yield _dot_product("causal_left_padding", "CAU1 CAU2 ATT13", t=S, causal=True, mask_bhts=left_padding(B, S)[:, None, None])
    yield _dot_product("bias", bias_bhts=(1, 3, T, S))
    yield _dot_product("bias_ragged_causal", "CAU3", bias_bhts=(B, 1, T, S), mask_bhts=ragged(B, S)[:, None, None], causal=True)
    infinite = np.where(left_padding(B, S)[:, None, None], 0.5, -np.inf)
    yield _dot_product("bias_minus_infinity", bias_bhts=infinite)
    yield _dot_product("bias_minus_infinity_weights", bias_bhts=infinite, return_weights=True)
    yield _dot_product("bias_minus_infinity_masked", bias_bhts=infinite, mask_bhts=ragged(B, S)[::-1, None, None])
    yield _dot_product("grouped_heads", "MHA10", h=6, g=2)
    yield _dot_product("grouped_heads_masked", "MHA10", h=6, g=2, mask_bhts=ragged(B, S)[:, None, None], return_weights=True)
    yield _dot_product("one_position", t=1, s=1)
    yield _dot_product("long", "", batch=1, t=200, s=200, causal=True)
    yield _dot_product("batch_0", batch=0)
    generator = rng("attention large")
    large: dict[str, Any] = {
        "query_bthk": 230 * generator.standard_normal((B, T, 3, 5)),
        "key_bsgk": 230 * generator.standard_normal((B, S, 3, 5)),
    }
    negative: dict[str, Any] = {
        "query_bthk": 60 * generator.random((B, T, 3, 5)) + 200,
        "key_bsgk": -60 * generator.random((B, S, 3, 5)) - 200,
    }
    yield _dot_product("large_logits", **large)
    yield _dot_product("large_logits_masked", "ATT12", mask_bhts=ragged(B, S)[:, None, None], **negative)


def _multi_head(name: str, catches: str = "", case_config: TransformerConfig | None = None, **inputs: Any) -> Case:
    shapes = {"query_btd": (B, T, 13), "memory_bsd": (B, S, 13)}
    return make("multi_head_attention", name, case_config or config(), catches, **(shapes | inputs))


def _multi_head_cases() -> Iterator[Case]:
    heads = "ATT1 ATT2 MHA1 MHA2 MHA8 MHA9"
    yield _multi_head("cross", heads)
    yield _multi_head("cross_weights", "ATT1 ATT2 MHA1", return_weights=True)
    yield _multi_head("ragged", "ATT5 ATT6 ATT7", mask_bhts=ragged(B, S)[:, None, None])
    yield _multi_head("left_padding", "ATT7 ATT13", mask_bhts=left_padding(B, S)[:, None, None])
    yield _multi_head("per_head_weights", "ATT5 ATT6 ATT15", mask_bhts=_masks()["per_head"], return_weights=True)
    yield _multi_head("no_bias", "MHA1 MHA2", config("keras_lab"))
    yield _multi_head("causal", "CAU1 CAU2", memory_bsd=(B, T, 13), causal=True)
    yield _multi_head("causal_cached", "CAU1 CAU2 CAU3", causal=True)
    yield _multi_head("grouped_heads", "MHA10", config(heads=6, key_value_heads=2))
    yield _multi_head("one_head", "", config(heads=1, key_value_heads=1))
    square = config(model_width=12, heads=3, key_size=4, value_size=4)
    yield _multi_head("square", "MHA1 MHA2 MHA5 MHA6", square, query_btd=(B, T, 12), memory_bsd=(B, S, 12))
    yield _multi_head("batch_2", "MHA1 MHA2 MHA7", query_btd=(2, T, 13), memory_bsd=(2, S, 13))
    yield _multi_head("one_position", "", query_btd=(B, 1, 13), memory_bsd=(B, 1, 13))
