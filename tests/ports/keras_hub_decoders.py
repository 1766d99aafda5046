"""KerasHub's backbones of decoders since Llama: hidden states, and logits from the reversed token embedding, on any Keras backend.

The first family with options for a case's config computes it; an unsupported config is rejected by name.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import keras_hub
import numpy as np

from reference_numpy import layout
from rosettaformer.ports import Case, Names, NotCovered

dtypes = ("float32",)
# in most backbones the head size is the width / heads, and scores are scaled by it
config = {"model_width": 60, "heads": 6, "key_value_heads": 2, "key_size": 10, "value_size": 10, "score_scale": None}

Options = dict[str, Any]
Rows = tuple[tuple[str, ...], ...]
PROJECTIONS = ("query", "key", "value", "output")
# the fields that a backbone fixes, unless its family overrides them
FIXED = {
    "encoder_layers": 0, "positions": "rotary", "rotary_layout": "halves", "rotary_fraction": 1.0, "embedding_norm": False,
    "activation": "silu", "gated_feed_forward": True, "norm": "rms", "norm_offset": False, "norm_one_plus_scale": False,
    "norm_placement": "pre", "final_norm": True, "query_key_norm": "none", "score_cap": None, "scale_embedding": False,
    "tie_logits": False, "query_key_value_bias": False, "attention_output_bias": False, "feed_forward_bias": False, "output_bias": False,
    "logit_scale": 1.0, "logit_cap": None,
}  # fmt: skip
ANY = ()  # a family supports every value of the field


@dataclass(frozen=True)
class Family:
    """A backbone: its options for a config, the values it supports of fields that others fix, and the names of its variables."""

    backbone: str
    options: Callable[[Any], Options]
    weights: Rows
    takes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


def named(
    attention: tuple[str, ...], feed_forward: tuple[str, ...], norms: Mapping[str, str],
    axes: tuple[str, ...] = ("d h k", "d g k", "d g e", "h e d"),
) -> Rows:  # fmt: skip
    """Returns a family's table: attention: query, key, value, output; feed_forward: gate, hidden, output; norms: ours -> its own."""
    return (
        ("target_embedding.table", "token_embedding._embeddings", "v d"),
        ("logits.kernel", "token_embedding.reverse_embeddings", "d v"),
        ("decoder.layers", "transformer_layers"),
        *((f"self_attention.{name}.kernel", f"{own}.kernel", shape) for name, own, shape in zip(PROJECTIONS, attention, axes, strict=True)),
        *((f"self_attention.{name}.bias", f"{own}.bias", shape.removeprefix("d "))
          for name, own, shape in zip(PROJECTIONS, attention, axes, strict=False) if name != "output"),
        *((f"feed_forward.{name}.kernel", f"{own}.kernel", shape)
          for name, own, shape in zip(("gate", "hidden", "output"), feed_forward, ("d f", "d f", "f d"), strict=True)),
        *((f"feed_forward.{name}.bias", f"{own}.bias", shape)
          for name, own, shape in zip(("gate", "hidden", "output"), feed_forward, "ffd", strict=True)),
        *((f"{name}.scale", f"{own}.scale", "k" if name.endswith(("query_norm", "key_norm")) else "d") for name, own in norms.items()),
    )  # fmt: skip


DENSE = "_self_attention_layer._{}_dense"
LLAMA = named(
    tuple(map(DENSE.format, PROJECTIONS)),
    ("_feedforward_gate_dense", "_feedforward_intermediate_dense", "_feedforward_output_dense"),
    {
        "self_attention_norm": "_self_attention_layernorm", "feed_forward_norm": "_feedforward_layernorm",
        "decoder.final_norm": "layer_norm",
        "self_attention.query_norm": f"{DENSE.format('query')}_layer_norm", "self_attention.key_norm": f"{DENSE.format('key')}_layer_norm",
    },
)  # fmt: skip
PHI = named(
    tuple(f"attention.{name}_dense" for name in PROJECTIONS),
    ("feedforward_gate_dense", "feedforward_intermediate_dense", "feedforward_output_dense"),
    {
        "self_attention_norm": "pre_attention_layernorm",
        "feed_forward_norm": "post_attention_layernorm",
        "decoder.final_norm": "layer_norm",
    },
)
GEMMA = named(
    tuple(f"attention.{name}_dense" for name in PROJECTIONS),
    ("gating_ffw", "gating_ffw_2", "ffw_linear"),
    {
        "self_attention_norm": "pre_attention_norm", "self_attention_output_norm": "post_attention_norm",
        "feed_forward_norm": "pre_ffw_norm", "feed_forward_output_norm": "post_ffw_norm", "decoder.final_norm": "layer_norm",
        "self_attention.query_norm": "attention.query_norm", "self_attention.key_norm": "attention.key_norm",
    },
    ("h d k", "g d k", "g d e", "h e d"),
)  # fmt: skip
SMOLLM = named(
    tuple(f"self_attn.{letter}_proj" for letter in "qkvo"),
    ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    {"self_attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm", "decoder.final_norm": "norm"},
    ("d (h k)", "d (g k)", "d (g e)", "h e d"),
)


def need(condition: bool, lacking: str) -> None:
    """Rejects a case for which the backbone lacks something."""
    if not condition:
        raise NotCovered(lacking)


def sizes(c: Any, free_head_size: bool = False) -> Options:
    """Returns the options common to all families. The head size is the width / heads, or its own option."""
    need(c.key_size == c.value_size, "heads of keys and values have one size")
    need(free_head_size or c.key_size * c.heads == c.model_width, "a head's size is the width / heads")
    return {
        "vocabulary_size": c.target_vocabulary, "num_layers": c.decoder_layers, "num_query_heads": c.heads,
        "num_key_value_heads": c.key_value_heads, "hidden_dim": c.model_width, "intermediate_dim": c.feed_forward_width,
        "layer_norm_epsilon": c.epsilon,
    } | ({"head_dim": c.key_size} if free_head_size else {})  # fmt: skip


def only(c: Any, window: bool = False) -> Any:
    """Rejects configs whose layers differ; the score scale must match the head size."""
    kinds = {c.layer_kind(layer) for layer in range(c.decoder_layers)}
    need(len(kinds) == 1, "the layers are all alike")
    need(window or not c.layer_kind(0).window, "there is no window")
    need(c.score_scale in (None, c.key_size**-0.5), "the score's scale is that of a head's size")
    return kinds.pop()


def factor(scaling: Any, *others: str) -> float:
    """Returns the factor of linear scaling; 1 for none, and for the other types that the family has."""
    need(scaling.kind in ("none", "linear", *others), f"there is no {scaling.kind} scaling")
    return scaling.factor if scaling.kind == "linear" else 1.0


def llama(c: Any) -> Options:
    kind = only(c)
    scaling = kind.scaling
    adjusted = {
        "rope_frequency_adjustment_factor": scaling.factor, "rope_low_freq_factor": scaling.low_frequency_factor,
        "rope_high_freq_factor": scaling.high_frequency_factor, "rope_pretraining_sequence_length": scaling.original_length,
    } if scaling.kind == "llama3" else {}  # fmt: skip
    tied = {"tie_word_embeddings": c.tie_logits}
    return sizes(c) | {"rope_max_wavelength": kind.base, "rope_position_scaling_factor": factor(scaling, "llama3")} | adjusted | tied


def mistral(c: Any) -> Options:
    kind = only(c, window=True)
    return sizes(c, free_head_size=True) | {
        "rope_max_wavelength": kind.base, "rope_scaling_factor": factor(kind.scaling), "sliding_window": kind.window or None,
    }  # fmt: skip


def qwen(c: Any) -> Options:
    kind = only(c, window=True)
    return sizes(c) | {
        "rope_max_wavelength": kind.base, "rope_scaling_factor": factor(kind.scaling), "tie_word_embeddings": c.tie_logits,
        "use_sliding_window_attention": kind.window > 0, "sliding_window_size": kind.window,
    }  # fmt: skip


def qwen3(c: Any) -> Options:
    kind = only(c, window=True)
    return sizes(c, free_head_size=True) | {
        "rope_max_wavelength": kind.base, "rope_scaling_factor": factor(kind.scaling), "tie_word_embeddings": c.tie_logits,
        "sliding_window_size": kind.window or None,
    }  # fmt: skip


def gemma(c: Any, period: int = 2, bases: tuple[float, float] = (1e4, 1e4), feed_forwards: int = 2) -> Options:
    """Gemma and Gemma 2; and Gemma 3, which has other bases, and a window in five of six layers."""
    kinds = [c.layer_kind(layer) for layer in range(max(c.decoder_layers, period))]
    window = kinds[0].window
    wanted = [window if (layer + 1) % period else 0 for layer in range(len(kinds))]
    need([kind.window for kind in kinds] == wanted, f"one layer in {period} is without the window, or all are")
    need(
        all(kind.base == bases[kind.window > 0] for kind in kinds), f"the bases of rotations are {bases[0]:g}, and {bases[1]:g} in a window"
    )
    need(all(kind.rotary for kind in kinds), "every layer rotates")
    scale = c.score_scale or c.key_size**-0.5
    need(scale in (c.key_size**-0.5, (c.model_width // c.heads) ** -0.5), "the score's scale is of a head's size or of the width / heads")
    sandwich = c.norm_placement == "sandwich"
    return sizes(c, free_head_size=True) | {
        "intermediate_dim": c.feed_forward_width * feed_forwards, "query_head_dim_normalize": scale == c.key_size**-0.5,
        "use_post_ffw_norm": sandwich, "use_post_attention_norm": sandwich, "attention_logit_soft_cap": c.score_cap,
        "final_logit_soft_cap": c.logit_cap, "use_sliding_window_attention": window > 0, "sliding_window_size": window,
    }  # fmt: skip


def gemma2(c: Any) -> Options:
    need(all(c.layer_kind(layer).scaling.kind == "none" for layer in (0, 1)), "rotations have no scaling")
    return gemma(c)


def gemma3(c: Any) -> Options:
    scaling = {"local_rope_scaling_factor": factor(c.local_rotary_scaling), "global_rope_scaling_factor": factor(c.rotary_scaling)}
    norm = {"use_query_key_norm": c.query_key_norm == "head"}
    return gemma(c, 6, (1e6, 1e4), 1) | scaling | norm | {"image_size": None}


def phi3(c: Any) -> Options:
    kind = only(c)
    scaling = kind.scaling
    need(scaling.kind in ("none", "longrope"), f"there is no {scaling.kind} scaling")
    found = sizes(c) | {"rope_max_wavelength": kind.base}
    if scaling.kind == "none":
        return found
    # the attention factor is sqrt(1 + ln(longest / original) / ln(original))
    longest = scaling.original_length ** (scaling.attention_factor**2)
    return found | {
        "rope_scaling_type": "su", "rope_scaling_short_factor": list(scaling.short_factors),
        "rope_scaling_long_factor": list(scaling.long_factors), "pretraining_sequence_length": scaling.original_length,
        "max_sequence_length": longest,
    }  # fmt: skip


def smollm3(c: Any) -> Options:
    scaling = only(c.replace(rotary_pattern=(True,))).scaling
    need(scaling.kind == "none", f"there is no {scaling.kind} scaling")
    rest = sizes(c)
    rest["num_attention_heads"] = rest.pop("num_query_heads")
    return rest | {
        "attention_bias": c.query_key_value_bias, "attention_dropout": 0.0, "mlp_bias": c.feed_forward_bias,
        "rope_layer_enabled_list": [c.layer_kind(layer).rotary for layer in range(c.decoder_layers)],
        "layer_types": ["full_attention"] * c.decoder_layers, "max_position_embeddings": 2048, "rope_theta": c.rotary_base,
        "partial_rotary_factor": c.rotary_fraction,
    }  # fmt: skip


_GEMMA: dict[str, tuple[Any, ...]] = {
    "activation": ("gelu_tanh",), "norm_one_plus_scale": (True,), "norm_placement": ("pre", "sandwich"), "score_cap": ANY,
    "scale_embedding": (True,), "tie_logits": (True,), "logit_cap": ANY,
}  # fmt: skip
FAMILIES = {
    "Llama": Family("Llama3Backbone", llama, LLAMA, {"tie_logits": ANY}),  # LlamaBackbone is the same class
    "Mistral": Family("MistralBackbone", mistral, LLAMA),
    "Qwen 2": Family("QwenBackbone", qwen, LLAMA, {"tie_logits": ANY, "query_key_value_bias": (True,)}),
    "Qwen 3": Family("Qwen3Backbone", qwen3, LLAMA, {"tie_logits": ANY, "query_key_norm": ("head",)}),
    "Gemma": Family("GemmaBackbone", gemma2, GEMMA, _GEMMA),
    "Gemma 3": Family("Gemma3Backbone", gemma3, GEMMA, _GEMMA | {"query_key_norm": ("none", "head")}),
    "Phi-3": Family("Phi3Backbone", phi3, PHI),
    "SmolLM3": Family(
        "SmolLM3Backbone", smollm3, SMOLLM,
        {"tie_logits": (True,), "query_key_value_bias": ANY, "feed_forward_bias": ANY, "rotary_fraction": ANY},
    ),
}  # fmt: skip


def options(family: Family, c: Any) -> Options:
    """Returns the backbone's options for a config. Raises NotCovered if it has none."""
    for name, fixed in FIXED.items():
        values, value = family.takes.get(name, (fixed,)), getattr(c, name)
        need(values is ANY or value in values, f"there is no {name}={value!r}")
    return family.options(c)


def built(family: Family, case: Case) -> Any:
    """Returns the backbone with the case's weights, in the case's dtype."""
    chosen = options(family, case.config)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(case.dtype)
    try:
        backbone = getattr(keras_hub.models, family.backbone)(**chosen)
    finally:
        keras.config.set_dtype_policy(before)
    table = Names(family.weights).table("transformer", case.config)
    for name, array in layout.to_native(case.parameters, table, case.config).items():
        variable(backbone, name).assign(array)
    return backbone


def variable(backbone: Any, path: str) -> Any:
    """Returns the variable at a path of attributes and list indices."""
    for step in path.split("."):
        backbone = backbone[int(step)] if step.isdigit() else getattr(backbone, step)
    return backbone


def run(backbone: Any, case: Case) -> dict[str, np.ndarray]:
    """Returns the backbone's sequence output, and its logits from the reversed embedding."""
    target, mask = case.inputs["target"], case.inputs.get("target_mask_bt")
    given = {"token_ids": target.astype("int32"), "padding_mask": np.ones(target.shape, "int32") if mask is None else mask.astype("int32")}
    state_btd = backbone(given, training=False)
    found = {"states": state_btd, "logits": backbone.token_embedding(state_btd, reverse=True)}
    return {name: keras.ops.convert_to_numpy(array) for name, array in found.items()}


def transformer(case: Case) -> np.ndarray:
    """Returns the logits of the first family that supports the case; the error names what each lacks."""
    need(case.inputs.get("target") is not None and case.inputs["target"].ndim == 2, "tokens are ids")
    lacking: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        try:
            options(family, case.config)
        except NotCovered as refused:
            lacking.setdefault(str(refused), []).append(name)
        else:
            return run(built(family, case), case)["logits"]
    raise NotCovered("; ".join(f"{', '.join(names)}: {reason}" for reason, names in lacking.items()))
