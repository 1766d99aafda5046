"""Cases of decoders since Llama: RoPE, RMS norms, gates, windows, caps and query-key norms.

Positions exceed 500, windows and original lengths; heads, groups and head sizes differ; scores
exceed caps.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged, rng, shrinking_padding
from .decoding import SINGLE, TOKENS
from .transformer import ids

HEADS: dict[str, Any] = {"heads": 6, "key_value_heads": 2, "key_size": 10}
SHARED = {"norm_placement": "parallel_shared"}
ORIGINAL = 12  # training length, for RoPE scaling
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear", "factor": 4.0},
    "dynamic": {"kind": "dynamic", "factor": 3.0, "original_length": ORIGINAL},
    "llama3": {
        "kind": "llama3", "factor": 8.0, "original_length": 100, "low_frequency_factor": 1.0, "high_frequency_factor": 4.0,
    },
    "yarn": {
        "kind": "yarn", "factor": 4.0, "original_length": 100, "beta_fast": 8.0, "beta_slow": 1.0, "truncate": True,
        "attention_factor": 1.15,
    },
    "yarn_untruncated": {
        "kind": "yarn", "factor": 4.0, "original_length": 100, "beta_fast": 8.0, "beta_slow": 1.0, "truncate": False,
        "attention_factor": 1.0,
    },
    "longrope": {
        "kind": "longrope", "original_length": ORIGINAL, "short_factors": [1.0, 1.1, 1.3, 1.6, 2.0],
        "long_factors": [1.0, 2.0, 4.0, 7.0, 11.0], "attention_factor": 1.2,
    },
}  # fmt: skip
# known bug -> the cases that must reveal it
CATCHES = {
    "ROT1": """
        rotary_embedding/halves rotary_embedding/interleaved multi_head_attention/rotary decoder_layer/llama transformer/llama
        transformer/cohere
    """,
    "ROT2": "rotary_embedding/fraction multi_head_attention/rotary_unnumbered transformer/glm4",
    "ROT3": "rotary_embedding/halves rotary_embedding/far decoder_layer/llama transformer/llama",
    "ROT4": "rotary_embedding/local decoder/mixed transformer/gemma3 decode_in_steps/gemma3",
    "ROT5": "rotary_embedding/halves rotary_embedding/interleaved multi_head_attention/rotary transformer/llama",
    "ROT6": "multi_head_attention/rotary decoder_layer/llama transformer/llama",
    "ROT7": "multi_head_attention/rotary decoder_layer/llama transformer/llama decode_in_steps/llama",
    "ROT8": "rotary_embedding/halves rotary_embedding/interleaved rotary_embedding/far",
    "ROT9": "rotary_embedding/halves rotary_embedding/interleaved rotary_embedding/far",
    "ROT10": "decoder/mixed transformer/smollm3 decode_in_steps/smollm3",
    "RSC1": """
        rotary_embedding/linear rotary_embedding/llama3 rotary_embedding/yarn transformer/llama transformer/yarn
        decode_in_steps/llama
    """,
    "RSC2": "rotary_embedding/local_scaling rotary_embedding/local_unscaled transformer/gemma3 decode_in_steps/gemma3",
    "RSC3": "rotary_embedding/linear rotary_embedding/llama3 transformer/llama transformer/yarn",
    "RSC4": "rotary_embedding/llama3 rotary_embedding/yarn transformer/llama transformer/yarn",
    "RSC5": "rotary_embedding/yarn rotary_embedding/longrope transformer/yarn transformer/phi3",
    "RSC6": "rotary_embedding/yarn rotary_embedding/yarn_untruncated transformer/yarn",
    "RSC7": "rotary_embedding/longrope transformer/phi3_beyond",
    "RSC8": "rotary_embedding/longrope_short transformer/phi3",
    "RSC9": "rotary_embedding/dynamic rotary_embedding/dynamic_short transformer/llama_dynamic",
    "QKN1": """
        multi_head_attention/query_key_norm_head multi_head_attention/query_key_norm_width decoder_layer/after transformer/qwen3
    """,
    "QKN2": "multi_head_attention/query_key_norm_width decoder_layer/after transformer/olmo2",
    "QKN3": """
        multi_head_attention/query_key_norm_head multi_head_attention/query_key_norm_width
        multi_head_attention/cross_query_key_norm transformer/qwen3
    """,
    "QKN4": "multi_head_attention/query_key_norm_head decoder/mixed transformer/qwen3",
    "QKN5": "multi_head_attention/query_key_norm_head transformer/qwen3",
    "QKN6": """
        multi_head_attention/query_key_norm_head_after_rotation multi_head_attention/query_key_norm_width_after_rotation
        transformer/hunyuan
    """,
    "QKN7": """
        multi_head_attention/query_key_norm_each_head multi_head_attention/cross_query_key_norm_each_head
        transformer/stablelm decode_in_steps/stablelm
    """,
    "MHA22": """
        multi_head_attention/clip multi_head_attention/clip_after_norm multi_head_attention/clip_before_norm
        multi_head_attention/cross_clip transformer/clipped decode_in_steps/clipped
    """,
    "MHA23": "multi_head_attention/clip_after_norm multi_head_attention/cross_clip transformer/clipped",
    "NRM24": "rms_norm/plain rms_norm/large_mean decoder_layer/llama transformer/llama",
    "NRM25": "rms_norm/one_plus_scale layer_norm/one_plus_scale decoder/mixed transformer/gemma transformer/gemma3",
    "NRM27": "rms_norm/large",
    "NRM28": "rms_norm/small rms_norm/plain transformer/llama",
    "NRM17": "decoder_layer/parallel transformer/gpt_neox",
    "STR14": "decoder_layer/parallel decoder_layer/parallel_shared transformer/gpt_neox transformer/gptj",
    "NRM29": "self_attention_sublayer/sandwich decoder_layer/gemma transformer/gemma",
    "NRM30": "self_attention_sublayer/after decoder_layer/gemma decoder_layer/after transformer/olmo2",
    "NRM31": "decoder_layer/gemma transformer/gemma",
    "FFN8": "feed_forward/gated_silu feed_forward/gated_bias decoder_layer/llama transformer/llama transformer/gemma",
    "FFN9": "feed_forward/gated_silu feed_forward/gated_gelu_tanh transformer/llama",
    "FFN10": "feed_forward/gated_silu feed_forward/gated_relu transformer/llama",
    "WIN1": """
        window_mask/square window_mask/cached scaled_dot_product_attention/window scaled_dot_product_attention/window_step
        transformer/gemma
    """,
    "WIN2": "window_mask/square scaled_dot_product_attention/window transformer/mistral",
    "WIN3": "decoder/mixed transformer/gemma transformer/encoder_and_decoder",
    "WIN4": "decoder/mixed transformer/gemma transformer/gemma3",
    "WIN5": "window_mask/cached window_mask/step scaled_dot_product_attention/window_cached decode_in_steps/gemma decode_in_steps/mistral",
    "CAP1": "scaled_dot_product_attention/cap multi_head_attention/window_cap transformer/gemma",
    "CAP2": "scaled_dot_product_attention/cap_masked_weights decoder_layer/gemma transformer/gemma",
    "CAP3": "soft_cap/sweep scaled_dot_product_attention/cap logits/cap transformer/gemma",
    "CAP4": "scaled_dot_product_attention/cap scaled_dot_product_attention/everything transformer/gemma",
    "CAP5": "logits/cap logits/scale_and_cap transformer/gemma",
    "CAP6": "logits/scale logits/scale_and_cap transformer/cohere",
    "ATT37": "scaled_dot_product_attention/scale scaled_dot_product_attention/cap decoder_layer/gemma transformer/gemma",
    "PRC7": "rotary_embedding/halves rotary_embedding/far transformer/llama",
    "MHA8": "multi_head_attention/query_key_value_bias transformer/qwen2",
    "MHA12": "multi_head_attention/query_key_value_bias multi_head_attention/cross_query_key_norm transformer/qwen2",
    "MHA10": "multi_head_attention/rotary transformer/llama",
    "NRM2": "rms_norm/small",
    "NRM5": "rms_norm/plain transformer/llama",
    "NRM7": "rms_norm/cancelling_offset_unrounded",
    "NRM15": "rms_norm/small",
    "NRM21": "rms_norm/plain rms_norm/one_plus_scale transformer/gemma",
    "FFN1": "feed_forward/gated_gelu_tanh transformer/gemma",
    "FFN4": "activation/silu feed_forward/gated_silu transformer/llama",
    "EMB1": "embedding/round_scale transformer/gemma",
    "CAU3": "scaled_dot_product_attention/window_cached decode_in_steps/llama",
    "CAU6": "transformer/llama",
    "CAU7": "decoder_layer/sandwich_crossed transformer/encoder_and_decoder",
    "PE13": "decode_in_steps/llama decode_in_steps/gemma decode_in_steps/qwen3",
}


def cases(build: Builder) -> Iterator[Case]:
    """Yields parts, layers and whole decoders of each kind."""
    parts = (*_rotary_cases(build), *_norm_cases(build), *_attention_cases(build), *_feed_forward_cases(build), *_head_cases(build))
    for case in (*parts, *_layer_cases(build), *_model_cases(build), *_decoding_cases(build)):
        catches = tuple(id_ for id_, names in CATCHES.items() if case.id in names.split())
        yield dataclasses.replace(case, catches=catches)


def _llama(build: Builder, **changes: Any) -> TransformerConfig:
    """Returns Llama's choices: RoPE, RMS norms that round before their scale, SwiGLU, no biases."""
    return _alone(build, "llama2_7b", {"epsilon": 1e-3, "rotary_base": 500.0}, changes)


def _gemma(build: Builder, **changes: Any) -> TransformerConfig:
    """Returns Gemma 2's choices, with a local and a global layer."""
    own = {"epsilon": 1e-3, "score_scale": 0.45, "score_cap": 2.0, "logit_cap": 3.0, "window": 3}
    return _alone(build, "gemma2_2b", own, {"decoder_layers": 2} | changes)


def _neox(build: Builder, **changes: Any) -> TransformerConfig:
    """Returns GPT-NeoX's choices: a parallel block, layer norms, and RoPE for a part of each head."""
    own: dict[str, Any] = {
        "norm_placement": "parallel",
        "norm": "layer",
        "norm_offset": True,
        "gated_feed_forward": False,
        "rotary_fraction": 0.4,
    }
    return _llama(build, **own | {"activation": "gelu_erf", "feed_forward_bias": True, "query_key_value_bias": True} | changes)


def _alone(build: Builder, dialect: str, own: dict[str, Any], changes: dict[str, Any]) -> TransformerConfig:
    """Returns a decoder-only config, with a port's values unless the case tests them."""
    layers = {"encoder_layers": 0, "decoder_layers": 1}
    return build.config(dialect, HEADS | own | {"padding_id": None}, **layers | changes)


def _positions(length: int = T, far: int = 600) -> np.ndarray:
    """Returns positions `b t`: from 0; far ones with gaps; after left padding."""
    place_t = np.arange(length)
    return np.stack([place_t, far + 3 * (place_t - length + 1), np.maximum(place_t - 2, 0)])


def _given(config: TransformerConfig) -> dict[str, Any]:
    """Returns the positions for RoPE; nothing if the port fixes another kind of positions."""
    return {"position_bt": _positions()} if config.positions == "rotary" else {}


def _rotary_cases(build: Builder) -> Iterator[Case]:
    """Yields each layout and scaling, partial rotation, local bases, far positions."""

    def rotated(name: str, config: TransformerConfig, position_bt: np.ndarray) -> Case:
        return build.make("rotary_embedding", name, config, x_bthk="b t h k", position_bt=position_bt)

    yield rotated("halves", _llama(build), _positions())
    yield rotated("interleaved", _llama(build, rotary_layout="interleaved"), _positions())
    yield rotated("fraction", _llama(build, rotary_fraction=0.4), _positions())
    yield rotated("far", _llama(build, rotary_base=500000.0), _positions(far=4095))
    local = _llama(build, layer_pattern=("local", "global"), window=3, local_rotary_base=100.0)
    yield rotated("local", local, _positions())
    for name, scaling in SCALINGS.items():
        yield rotated(name, _llama(build, rotary_scaling=scaling), _positions(far=90))
    for name in ("dynamic", "longrope"):  # shorter than the original length
        yield rotated(f"{name}_short", _llama(build, rotary_scaling=SCALINGS[name]), _positions(far=ORIGINAL - 1))
    yield rotated("dynamic_shorter", _llama(build, rotary_scaling=SCALINGS["dynamic"]), _positions(far=ORIGINAL - 3))
    yield rotated("longrope_one_beyond", _llama(build, rotary_scaling=SCALINGS["longrope"]), _positions(far=ORIGINAL))
    own = _llama(build, layer_pattern=("local",), window=3, local_rotary_scaling=SCALINGS["linear"])
    yield rotated("local_scaling", own, _positions())
    unscaled = _llama(build, layer_pattern=("local",), window=3, rotary_scaling=SCALINGS["linear"])
    yield rotated("local_unscaled", unscaled, _positions())
    for layout in ("halves", "tensor2tensor"):
        catches, even = "PE28" if layout == "tensor2tensor" else "", build.config(model_width=12, sinusoid_layout=layout)
        yield build.make("positional_encoding", layout, build.config(sinusoid_layout=layout), catches, position_bt=_positions())
        yield build.make("positional_encoding", f"{layout}_even_width", even, catches, position_bt=_positions())


def _norm_cases(build: Builder) -> Iterator[Case]:
    """Yields small mean squares, where epsilon matters; large means; float16 overflow; all flags."""
    generator = rng("decoders norm values")
    narrow = generator.standard_normal((B, S, 4)) * np.logspace(0, -3, S)[:, None]
    far = 100 + generator.standard_normal((B, T, build.config().model_width))
    small = _llama(build, model_width=4, epsilon=1e-6)
    yield build.make("rms_norm", "small", small, x_btd=narrow)
    yield build.make("rms_norm", "plain", _llama(build), x_btd="b t d")
    yield build.make("rms_norm", "large_mean", _llama(build), x_btd=far)
    yield build.make("rms_norm", "large", _llama(build), x_btd=4 * far)
    yield build.make("rms_norm", "one_plus_scale", _gemma(build), x_btd="b t d")
    yield build.make("rms_norm", "scale_before_cast", _llama(build, norm_cast_before_scale=False), x_btd="b t d")
    yield build.make("rms_norm", "offset", _llama(build, norm_offset=True), x_btd="b t d")
    yield build.make("rms_norm", "zeros", _llama(build), x_btd=np.zeros((1, 2, build.config().model_width)))
    yield build.make("rms_norm", "one_position", _llama(build), x_btd="1 1 d")
    for cast_before_scale in (True, False):
        yield _cancelling_offset(build, cast_before_scale)
    yield build.make("layer_norm", "no_offset", build.config(norm_offset=False), x_btd="b t d")
    yield build.make("layer_norm", "one_plus_scale", build.config(norm_one_plus_scale=True), x_btd="b t d")
    yield build.make("layer_norm", "cast_before_scale", build.config(norm_cast_before_scale=True), x_btd="b t d")


def _cancelling_offset(build: Builder, cast_before_scale: bool) -> Case:
    """Returns rows that the offset nearly cancels, which exposes early rounding."""
    generator = rng("decoders cancelling")
    config = _llama(build, norm_offset=True, norm_cast_before_scale=cast_before_scale)
    pattern = generator.standard_normal(config.model_width)
    near = pattern + 0.01 * generator.standard_normal((B, T, config.model_width))
    fixed = {"scale": np.full(config.model_width, 48.0), "offset": -48.0 * pattern / np.sqrt((pattern * pattern).mean())}
    name = "cancelling_offset" if cast_before_scale else "cancelling_offset_unrounded"
    return build.make("rms_norm", name, config, fixed=fixed, x_btd=near)


def _attention_cases(build: Builder) -> Iterator[Case]:
    """Yields scales, scores beyond the cap, all windows, rotated and normalized queries."""
    sweep = np.linspace(-40, 40, 81).reshape(1, 9, 9)
    yield build.make("soft_cap", "sweep", build.config(), x=sweep, cap=5.0)
    for name, target, source, window in (("square", S, S, 3), ("cached", T, S, 4), ("step", 1, S, 4), ("one", T, T, 1), ("wide", T, T, S)):
        yield build.make("window_mask", name, build.config(), target_length=target, source_length=source, window=window)

    def dot_product(name: str, t: int = S, s: int = S, **inputs: Any) -> Case:
        shapes: dict[str, Any] = {"query_bthk": f"b {t} h k", "key_bsgk": f"b {s} g k", "value_bsge": f"b {s} g e"}
        return build.make("scaled_dot_product_attention", name, build.config(**HEADS), **(shapes | inputs))

    masked: dict[str, Any] = {"mask_bhts": left_padding(B, S)[:, None, None]}
    yield dot_product("scale", scale=0.7)
    yield dot_product("cap", scale=0.9, cap=1.5)
    yield dot_product("cap_masked_weights", scale=0.9, cap=1.5, causal=True, return_weights=True, **masked)
    yield dot_product("window", causal=True, window=3)
    yield dot_product("window_weights", causal=True, window=3, return_weights=True, **masked)
    yield dot_product("window_both_sides", window=2)
    yield dot_product("window_cached", t=T, causal=True, window=3)
    yield dot_product("window_step", t=1, causal=True, window=4)
    yield dot_product("window_one", causal=True, window=1)
    yield dot_product("window_long", t=200, s=200, causal=True, window=17)
    yield dot_product("everything", causal=True, window=3, scale=0.9, cap=1.5, bias_bhts="1 h 7 7", **masked)

    def attended(name: str, config: TransformerConfig, **inputs: Any) -> Iterator[Case]:
        x: dict[str, Any] = {"query_btd": "b t d", "memory_bsd": "b t d", "causal": True}
        yield build.make("multi_head_attention", name, config, **(x | inputs))
        alone: dict[str, Any] = {"x_btd": "b t d", "causal": True}
        yield build.make("self_attention", name, config, **(alone | inputs))

    def placed(name: str, config: TransformerConfig, **inputs: Any) -> Iterator[Case]:
        yield from attended(name, config, **_given(config), **inputs)

    yield from placed("rotary", _llama(build))
    yield from attended("rotary_unnumbered", _llama(build, rotary_layout="interleaved", rotary_fraction=0.4))
    yield from placed("query_key_norm_head", _llama(build, query_key_norm="head"))
    yield from placed("query_key_norm_each_head", _llama(build, query_key_norm="each_head"))
    yield from placed("query_key_norm_width", _llama(build, query_key_norm="width"))
    after = {"query_key_norm_after_rotation": True}
    yield from placed("query_key_norm_head_after_rotation", _llama(build, query_key_norm="head", **after))
    yield from placed("query_key_norm_width_after_rotation", _llama(build, query_key_norm="width", **after))
    clip = {"query_key_value_clip": 0.8}
    yield from placed("clip", _llama(build, **clip))
    yield from placed("clip_after_norm", _llama(build, query_key_norm="width", **clip))
    yield from placed("clip_before_norm", _llama(build, query_key_norm="head", **clip | after))
    rotated = {"positions": "rotary", "query_key_value_bias": True}  # a key bias only matters in rotated keys
    yield from placed("query_key_value_bias", _llama(build, **rotated))
    yield from attended("output_bias", _llama(build, attention_output_bias=True), return_weights=True)
    yield from placed("window_cap", _gemma(build), mask_bhts=ragged(B, T)[:, None, None])
    layered = build.config(query_key_norm="width", **HEADS)
    each = layered.replace(query_key_norm="each_head", norm_one_plus_scale=True)
    yield build.make("multi_head_attention", "cross_query_key_norm_each_head", each, query_btd="b t d", memory_bsd="b s d")
    yield build.make("multi_head_attention", "cross_clip", layered.replace(**clip), query_btd="b t d", memory_bsd="b s d")
    yield build.make("multi_head_attention", "cross_query_key_norm", layered, query_btd="b t d", memory_bsd="b s d")


def _feed_forward_cases(build: Builder) -> Iterator[Case]:
    """Yields gates with every activation, with and without biases, and dropout of the product."""
    for name in ("silu", "gelu_tanh", "gelu_erf", "relu"):
        yield build.make("feed_forward", f"gated_{name}", _llama(build, activation=name), x_btd="b t d")
    yield build.make("feed_forward", "gated_bias", _llama(build, feed_forward_bias=True), x_btd="b t d")
    yield build.make("feed_forward", "no_bias", build.config(feed_forward_bias=False), x_btd="b t d")
    yield build.make("feed_forward", "gated_hidden_dropout", _llama(build, hidden_dropout_rate=0.2, dropout_rate=0.1), x_btd="b t d")


def _head_cases(build: Builder) -> Iterator[Case]:
    """Yields embeddings with a rounded scale, and logits beyond their cap."""
    token = rng("decoders ids").integers(0, 29, (B, T))
    rounded = build.config(model_width=13, scale_embedding=True, round_embedding_scale=True)
    yield build.make("embedding", "round_scale", rounded, token=token)
    yield build.make("logits", "scale", _llama(build, logit_scale=0.3), x_btd="b t d")
    yield build.make("logits", "cap", _llama(build, logit_cap=1.5), x_btd="b t d")
    yield build.make("logits", "scale_and_cap", build.config(logit_scale=0.6, logit_cap=1.5), x_btd="b t d")


def _layer_cases(build: Builder) -> Iterator[Case]:
    """Yields all norm placements, in layers and in sub-layers, and stacks of different layers."""
    x: dict[str, Any] = {"x_btd": "b t d"}
    own: dict[str, Any] = _given(_llama(build)) | {"self_mask_bhts": ragged(B, T)[:, None, None]}
    after: dict[str, Any] = {"norm_placement": "after", "query_key_norm": "width", "norm_cast_before_scale": False}
    yield build.make("decoder_layer", "llama", _llama(build), **x, **own)
    yield build.make("decoder_layer", "gemma", _gemma(build, decoder_layers=1), **x, **own)
    yield build.make("decoder_layer", "after", _llama(build, **after), **x, **own)
    yield build.make("decoder_layer", "parallel", _neox(build), **x, **own)
    yield build.make("decoder_layer", "parallel_shared", _neox(build, **SHARED), **x, **own)
    both = build.config("llama2_7b", encoder_layers=1, decoder_layers=1, **HEADS)
    yield build.make("encoder_layer", "llama", both, **x, **_given(both))
    crossed = build.config("llama2_7b", encoder_layers=1, decoder_layers=1, norm_placement="sandwich", **HEADS)
    yield build.make("decoder_layer", "sandwich_crossed", crossed, **x, memory_bsd="b s d")
    for name, config in {"llama": _llama(build), "sandwich": _gemma(build), "after": _llama(build, **after)}.items():
        yield build.make("self_attention_sublayer", name, config, **x, **_given(config), causal=True)
        yield build.make("feed_forward_sublayer", name, config, **x)
    mixed = _gemma(build, decoder_layers=3, query_key_norm="head", rotary_pattern=(True, False), local_rotary_base=100.0)
    yield build.make("decoder", "mixed", mixed, **x, **own)
    local = build.config("gemma2_2b", encoder_layers=2, decoder_layers=1, window=2, **HEADS)
    given: dict[str, Any] = {"position_bs": _positions(S)} if _given(local) else {}
    padded = ragged(B, S)[:, None, None]
    yield build.make("encoder", "local", local, x_bsd="b s d", **given, mask_bhts=padded)
    second: dict[str, Any] = {"position_bt": _positions(S)} if given else {}
    yield build.make("encoder_layer", "local", local, x_btd="b s d", **second, mask_bhts=padded)


def _models(build: Builder) -> Iterator[tuple[str, TransformerConfig]]:
    """Yields a whole decoder of each kind."""
    yield "llama", _llama(build, rotary_scaling=SCALINGS["llama3"], decoder_layers=2)
    yield "gemma", _gemma(build, decoder_layers=2)
    local = {"layer_pattern": ("local",), "window": 3}
    yield "mistral", _llama(build, **local, local_rotary_base=500.0)
    yield "qwen2", _llama(build, positions="rotary", query_key_value_bias=True, tie_logits=True)
    yield "qwen3", _llama(build, query_key_norm="head", tie_logits=True)
    pattern = {"layer_pattern": ("local", "global"), "local_rotary_base": 100.0, "rotary_scaling": SCALINGS["linear"]}
    yield "gemma3", _gemma(build, query_key_norm="head", score_cap=None, logit_cap=None, **pattern)
    yield "phi3", _llama(build, rotary_scaling=SCALINGS["longrope"])
    yield "olmo2", _llama(build, norm_placement="after", query_key_norm="width", norm_cast_before_scale=False)
    yield "clipped", _llama(build, query_key_norm="width", query_key_value_clip=0.8, decoder_layers=2)
    yield "olmo", _llama(build, norm="layer", norm_scale=False, norm_cast_before_scale=False, query_key_value_clip=1.2, decoder_layers=2)
    yield "stablelm", _neox(build, **SHARED, query_key_norm="each_head", query_key_norm_offset=False, decoder_layers=2)
    yield "hunyuan", _llama(build, query_key_norm="head", query_key_norm_after_rotation=True, decoder_layers=2)
    yield "smollm3", _llama(build, decoder_layers=2, rotary_pattern=(True, False))
    yield "yarn", _llama(build, rotary_scaling=SCALINGS["yarn"])
    yield "cohere", _llama(build, rotary_layout="interleaved", norm="layer", logit_scale=0.3, tie_logits=True)
    yield "glm4", _llama(build, rotary_layout="interleaved", rotary_fraction=0.4, norm_placement="sandwich", query_key_value_bias=True)
    yield "gpt_neox", _neox(build, decoder_layers=2)
    yield "gptj", _neox(build, **SHARED, decoder_layers=2, rotary_layout="interleaved", query_key_value_bias=False, output_bias=True)
    yield "no_positions", _llama(build, positions="none", norm="layer", norm_offset=True)


def _model_cases(build: Builder) -> Iterator[Case]:
    """Yields each kind of decoder, left padding, a long text, an encoder-decoder."""
    for name, config in _models(build):
        yield _read(build, "transformer", name, config)
    left = shrinking_padding(B, T)
    for name, config in (("llama", _llama(build)), ("gemma", _gemma(build)), ("phi3", _llama(build, rotary_scaling=SCALINGS["longrope"]))):
        yield _read(build, "transformer", f"{name}_left_padding", config, target_mask_bt=left)
    yield _read(build, "transformer", "llama_dynamic", _llama(build, rotary_scaling=SCALINGS["dynamic"]), 2 * ORIGINAL)
    yield _read(build, "transformer", "phi3_beyond", _llama(build, rotary_scaling=SCALINGS["longrope"]), 2 * ORIGINAL)
    far = _llama(build, layer_pattern=("global", "local"), window=100, decoder_layers=2)
    yield dataclasses.replace(_read(build, "transformer", "long_text", far, 600), dtypes=("float64", "float32"))
    both = build.config("gemma2_2b", encoder_layers=1, decoder_layers=2, window=3, positions="rotary", padding_id=2, **HEADS)
    source, target = (ids(f"decoders {side}", 23, 2, mask) for side, mask in (("source", ragged(B, S)), ("target", ragged(B, T))))
    yield build.make("transformer", "encoder_and_decoder", both, source=source, target=target)
    for name, config in (("llama", _llama(build)), ("gemma", _gemma(build))):
        yield _read(build, "training_loss", name, config, smoothing=0.1)
        read = ids(f"states {name}", 23, None, np.ones((B, T), bool))
        yield build.make("states", name, config, target=read, target_mask_bt=left)
    yield build.make("states", "llama_unpadded", _llama(build), target=ids("states llama_unpadded", 23, None, np.ones((B, S), bool)))


def _read(build: Builder, component: str, name: str, config: TransformerConfig, length: int = T, **inputs: Any) -> Case:
    """Returns a case of a decoder-only model on random ids."""
    rows = B if length < 100 else 1
    given: dict[str, Any] = {
        "source": None,
        "target": ids(f"decoders {name}", config.target_vocabulary, None, np.ones((rows, length), bool)),
    }
    return build.make(component, name, config, **given | inputs)


def _decoding_cases(build: Builder) -> Iterator[Case]:
    """Yields steps across windows and original lengths, and searches after prompts."""
    length = 2 * T
    mask = np.arange(length) >= np.array([[0], [3], [1]])
    configs = dict(_models(build))
    steps = dict.fromkeys(
        ("llama", "gemma", "mistral", "qwen3", "gemma3", "smollm3", "gptj", "hunyuan", "clipped", "olmo", "stablelm"), (4, 1, 3, 2)
    ) | {"mistral_one_by_one": (1,) * length}
    for name, splits in steps.items():
        target = ids(f"decoders steps {name}", 23, None, np.ones((B, length), bool))
        case = build.make("decode_in_steps", name, configs[name.split("_")[0]], target=target, memory_bsd=None, target_mask_bt=mask)
        yield dataclasses.replace(case, inputs=dict(case.inputs) | {"splits": splits}, dtypes=SINGLE)
    dynamic = _llama(build, rotary_scaling=SCALINGS["dynamic"])
    target = ids("decoders steps dynamic", 23, None, np.ones((B, 2 * ORIGINAL), bool))
    case = build.make("decode_in_steps", "dynamic", dynamic, target=target, memory_bsd=None)
    yield dataclasses.replace(case, inputs=dict(case.inputs) | {"splits": (ORIGINAL - 2, 1, 3, 8, 2)}, dtypes=SINGLE)
    options: dict[str, dict[str, Any]] = {"greedy_search": {}, "beam_search": {"beam_size": 3, "n_best": 2, "alpha": 1.0}}
    small: dict[str, Any] = {"target_vocabulary": 17, "source_vocabulary": 17}
    prefix = ids("decoders prefix", 17, None, np.ones((B, 4), bool))
    longrope = {f"{kind}rotary_scaling": SCALINGS["longrope"] | {"original_length": n} for kind, n in (("", 5), ("local_", 8))}
    switching = _llama(build, **small, **longrope, decoder_layers=2, layer_pattern=("local", "global"), window=3)
    for name, config in (("llama", _llama(build, **small)), ("gemma", _gemma(build, **small)), ("phi3_beyond", switching)):
        for component, own in options.items():
            strategy = {"start_id": None, "end_id": 1, "max_new_tokens": TOKENS} | own
            strategy |= {"end_id": 7, "min_new_tokens": TOKENS - 3} if config is switching else {}
            inputs: dict[str, Any] = {"source": None, "prefix": prefix, "prefix_mask_bp": mask[:, :4]}
            inputs |= {f"strategy.{field}": value for field, value in strategy.items()}
            yield dataclasses.replace(build.make(component, name, config, **inputs), dtypes=("float32",))
    strategy = {"start_id": None, "end_id": 1, "max_new_tokens": TOKENS, "temperature": 1.4, "top_p": 0.9, "repetition_penalty": 1.2}
    inputs = {"source": None, "prefix": prefix, "prefix_mask_bp": mask[:, :4]} | {f"strategy.{k}": v for k, v in strategy.items()}
    inputs["uniform_bn"] = rng("sample llama").uniform(0.01, 0.99, (B, TOKENS))
    yield build.make("sample", "llama", _llama(build, **small), dtypes=("float32",), **inputs)
