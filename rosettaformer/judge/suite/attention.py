"""Cases of masks, softmax, scaled dot-product attention and multi-head attention."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged, rng

GROUPED: dict[str, Any] = {"heads": 6, "key_value_heads": 2}


def cases(build: Builder) -> Iterator[Case]:
    """Yields every kind of mask; S != T, k != e, grouped heads, one position and 200."""
    yield from _mask_cases(build)
    yield from _softmax_cases(build)
    yield from _dot_product_cases(build)
    yield from _multi_head_cases(build)


def _mask_cases(build: Builder) -> Iterator[Case]:
    """Yields masks with and without a padding id, all relations of T and S, combinations."""
    some = build.config()
    ids = rng("mask ids").integers(0, 5, (B, S))
    yield build.make("token_mask", "padding_id", some, "PAD1", token=ids)
    yield build.make("token_mask", "no_padding_id", build.config(padding_id=None), "PAD1", token=ids)
    yield build.make("token_mask", "soft_rows", some, token="b s v")
    yield build.make("token_mask", "padding_id_0", build.config(padding_id=0), token=ids)
    yield build.make("padding_mask", "right_padding", some, "ATT9", mask_bs=ragged(B, S))
    yield build.make("padding_mask", "left_padding", some, "ATT9", mask_bs=left_padding(B, S))
    for name, target, source in (("square", T, T), ("cached", T, S), ("step", 1, S), ("more_queries", S, T)):
        catches = {"square": "CAU1 CAU2 CAU8", "step": "CAU3"}.get(name, "CAU1 CAU2 CAU3 CAU8")
        yield build.make("causal_mask", name, some, catches, target_length=target, source_length=source)
    full = rng("mask full").random((B, 3, T, S)) < 0.5
    yield build.make("combine_masks", "both", some, "ATT22", mask_bhts=full, other_bhts=ragged(B, S)[:, None, None])
    yield build.make("combine_masks", "first", some, mask_bhts=full, other_bhts=None)
    yield build.make("combine_masks", "second", some, mask_bhts=None, other_bhts=full)


def _softmax_cases(build: Builder) -> Iterator[Case]:
    """Yields ragged and empty rows, large logits, one entry, and very many entries."""
    some, shape = build.config(), (B, 3, T, S)
    generator = rng("softmax values")
    large = generator.choice([-6e4, -5.9e4, 0.0, 5.9e4, 6e4], shape) + generator.standard_normal(shape)
    yield build.make("softmax", "plain", some, "ATT4 ATT23 PRC3", logits=shape, mask=None)
    yield build.make("softmax", "ragged", some, "ATT4 ATT5 ATT6 ATT8 ATT23 ATT25", logits=shape, mask=ragged(B, S)[:, None, None])
    yield build.make("softmax", "empty_rows", some, "ATT12 ATT13 ATT25", logits=shape, mask=left_padding(B, S)[:, None, None])
    yield build.make("softmax", "large", some, "ATT24 ATT33", logits=large, mask=None)
    yield build.make("softmax", "large_masked", some, "ATT10 ATT12", logits=-np.abs(large), mask=ragged(B, S)[:, None, None])
    yield build.make("softmax", "all_equal", some, logits=np.full(shape, 3.25), mask=None)
    yield build.make("softmax", "one_entry", some, logits=(B, 3, T, 1), mask=None)
    yield build.make("softmax", "long", some, "ATT19", logits=generator.standard_normal((1, 1, 3, 2000)) / 10, mask=None)
    yield build.make("softmax", "one_axis", some, logits=(S,), mask=None)


def _masks(heads: int) -> dict[str, np.ndarray]:
    full = rng("attention mask").random((B, heads, T, S)) < 0.6
    full[1, -1, 3] = False
    return {
        "ragged": ragged(B, S)[:, None, None],
        "left_padding": left_padding(B, S)[:, None, None],
        "per_query": full[:1, :1],
        "per_head": full,
    }


def _dot_product(
    build: Builder,
    name: str,
    catches: str = "",
    batch: int = B,
    t: int = T,
    s: int = S,
    heads: dict[str, Any] | None = None,
    **inputs: Any,
) -> Case:
    case_config = build.config(**(heads or {}))
    shapes = {"query_bthk": f"{batch} {t} h k", "key_bsgk": f"{batch} {s} g k", "value_bsge": f"{batch} {s} g e"}
    return build.make("scaled_dot_product_attention", name, case_config, catches, **(shapes | inputs))


def _dot_product_cases(build: Builder) -> Iterator[Case]:
    scale = "ATT1 ATT2 ATT3 ATT4 ATT31 ATT34 MHA20"
    yield _dot_product(build, "plain", scale)
    yield _dot_product(build, "plain_weights", scale, return_weights=True)
    for name, mask in _masks(build.config().heads).items():
        catches = {"left_padding": "ATT7 ATT13", "per_head": "ATT5 ATT6 ATT7 ATT13 ATT15"}.get(name, "ATT5 ATT6 ATT7 ATT8 ATT10")
        catches += " ATT26 ATT36" * (name == "ragged")
        yield _dot_product(build, name, catches, mask_bhts=mask)
        yield _dot_product(build, f"{name}_weights", catches, mask_bhts=mask, return_weights=True)
    for name, t, s in (("causal", T, T), ("causal_cached", T, S), ("causal_more_queries", S, T), ("causal_step", 1, S)):
        catches = {"causal": "CAU1 CAU2 CAU8 CAU9", "causal_step": "CAU3"}.get(name, "CAU1 CAU2 CAU3 CAU8 CAU9")
        yield _dot_product(build, name, catches, t=t, s=s, causal=True)
        yield _dot_product(build, f"{name}_weights", catches, t=t, s=s, causal=True, return_weights=True)
    yield _dot_product(
        build, "causal_left_padding", "CAU1 CAU2 CAU4 ATT8 ATT11 ATT13 ATT29", t=S, causal=True, mask_bhts=left_padding(B, S)[:, None, None]
    )
    yield _dot_product(build, "bias", "ATT28", bias_bhts="1 h t s")
    yield _dot_product(build, "bias_ragged_causal", "CAU3 CAU4", bias_bhts="b 1 t s", mask_bhts=ragged(B, S)[:, None, None], causal=True)
    infinite = np.where(left_padding(B, S)[:, None, None], 0.5, -np.inf)
    yield _dot_product(build, "bias_minus_infinity", bias_bhts=infinite)
    yield _dot_product(build, "bias_minus_infinity_weights", bias_bhts=infinite, return_weights=True)
    yield _dot_product(build, "bias_minus_infinity_masked", bias_bhts=infinite, mask_bhts=ragged(B, S)[::-1, None, None])
    yield _dot_product(build, "grouped_heads", "MHA10", heads=GROUPED)
    yield _dot_product(build, "grouped_heads_masked", "MHA10", heads=GROUPED, mask_bhts=ragged(B, S)[:, None, None], return_weights=True)
    per_head: dict[str, Any] = {"mask_bhts": _masks(GROUPED["heads"])["per_head"], "bias_bhts": "b h t s"}
    yield _dot_product(build, "grouped_heads_bias", "ATT15 ATT28 MHA10", heads=GROUPED, **per_head, return_weights=True)
    yield _dot_product(build, "same_length", t=S, mask_bhts=ragged(B, S)[:, None, None])
    yield _dot_product(build, "attention_dropout", dropout_rate=0.3)
    yield _dot_product(build, "one_position", t=1, s=1)
    yield _dot_product(build, "long", "", batch=1, t=200, s=200, causal=True)
    yield _dot_product(build, "batch_0", batch=0)
    heads, size = build.config().heads, build.config().key_size
    generator = rng("attention large")
    large: dict[str, Any] = {
        "query_bthk": 230 * generator.standard_normal((B, T, heads, size)),
        "key_bsgk": 230 * generator.standard_normal((B, S, heads, size)),
    }
    negative: dict[str, Any] = {
        "query_bthk": 60 * generator.random((B, T, heads, size)) + 200,
        "key_bsgk": -60 * generator.random((B, S, heads, size)) - 200,
    }
    yield _dot_product(build, "large_logits", "ATT19", **large)
    yield _dot_product(build, "large_logits_masked", "ATT12 ATT19", mask_bhts=ragged(B, S)[:, None, None], **negative)


def _multi_head(build: Builder, name: str, catches: str = "", case_config: TransformerConfig | None = None, **inputs: Any) -> Case:
    shapes = {"query_btd": "b t d", "memory_bsd": "b s d"}
    return build.make("multi_head_attention", name, case_config or build.config(), catches, **(shapes | inputs))


def _multi_head_cases(build: Builder) -> Iterator[Case]:
    heads = "ATT1 ATT2 ATT32 MHA1 MHA2 MHA4 MHA8 MHA9 MHA13 MHA15 MHA16 MHA18 MHA20 MHA21 PRC1"
    yield _multi_head(build, "cross", heads)
    yield _multi_head(build, "cross_weights", "ATT1 ATT2 MHA1", return_weights=True)
    yield _multi_head(build, "ragged", "ATT5 ATT6 ATT7", mask_bhts=ragged(B, S)[:, None, None])
    yield _multi_head(build, "left_padding", "ATT7 ATT13", mask_bhts=left_padding(B, S)[:, None, None])
    yield _multi_head(build, "per_head_weights", "ATT5 ATT6 ATT15", mask_bhts=_masks(build.config().heads)["per_head"], return_weights=True)
    yield _multi_head(build, "no_bias", "MHA1 MHA2 MHA4", build.config("unscaled_embedding"))
    yield _multi_head(build, "causal", "CAU1 CAU2 MHA17 MHA19", memory_bsd="b t d", causal=True)
    yield _multi_head(build, "causal_cached", "CAU1 CAU2 CAU3", causal=True)
    yield _multi_head(build, "window_cached", "CAU1 CAU2 CAU3", build.config(layer_pattern=("local",), window=3), causal=True)
    yield _multi_head(build, "grouped_heads", "MHA10", build.config(**GROUPED))
    yield _multi_head(build, "one_head", "", build.config(heads=1, key_value_heads=1))
    square = build.config(model_width=12, key_size=4, value_size=4)
    yield _multi_head(build, "square", "MHA1 MHA2 MHA3 MHA4 MHA5 MHA6 MHA13 MHA14 ATT34", square)
    yield _multi_head(build, "batch_2", "MHA1 MHA2 MHA7", query_btd="2 t d", memory_bsd="2 s d")
    yield _multi_head(build, "one_position", "", query_btd="b 1 d", memory_bsd="b 1 d")
    yield _multi_head(build, "bias", "ATT28", bias_bhts="1 h t s")
    masked: dict[str, Any] = {"mask_bhts": ragged(B, S)[:, None, None], "bias_bhts": "b h t s"}
    yield _multi_head(build, "bias_ragged_weights", "ATT15 ATT28", **masked, return_weights=True)
    own: dict[str, Any] = {"memory_bsd": "b t d", "bias_bhts": "1 h t t", "causal": True}
    yield _multi_head(build, "grouped_heads_bias_causal", "ATT28 MHA10", build.config(**GROUPED), **own)
    yield _multi_head(build, "attention_dropout", "", build.config(attention_dropout_rate=0.3))
