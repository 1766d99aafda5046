"""Cases of routers, mixtures of experts, attention sinks, limited gates, and models with them.

Rounding decides which experts a token chooses if their scores are almost equal. The inputs of
routers and mixtures have no such tokens; whole models have few.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ..case import DTYPES, Case
from ..expectation.components import answer
from ..expectation.routing import Decisions
from .build import B, Builder, S, T, left_padding, ragged, rng
from .decoders import HEADS, SINGLE
from .transformer import ids

EXPERTS: dict[str, Any] = {"experts": 8, "experts_per_token": 3, "expert_width": 6}
OWN: dict[str, Any] = HEADS | {"epsilon": 1e-3, "rotary_base": 500.0, "padding_id": None}
SHARED: dict[str, Any] = {"shared_width": 9}
GPT_OSS: dict[str, Any] = {
    "router_scores": "chosen_softmax", "router_bias": True, "router_normalize": False, "feed_forward_bias": True,
    "activation": "gelu_sigmoid", "gate_limit": 1.7, "hidden_offset": 1.0,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "router_scores": "sigmoid", "selection_bias": True, "router_epsilon": 1e-20, "router_scale": 2.5, "router_groups": 4,
    "router_groups_kept": 2, "router_group_score": "best_two", "router_group_mask": "minus_infinity",
    "router_product_dtype": "float32", "router_weight_dtype": "float32",
}  # fmt: skip
ROUTERS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "not_normalized": {"router_normalize": False, "router_scale": 1.7},
    "sigmoid": {"router_scores": "sigmoid", "router_epsilon": 0.3},
    "sigmoid_groups": DEEPSEEK,
    "selection_bias": {"selection_bias": True},
    "groups_by_best": {"router_groups": 2, "router_normalize": False, "router_scale": 2.5},
    "groups_below_zero": DEEPSEEK | {"router_group_mask": "zero", "router_groups_kept": 3},
    "chosen_softmax": GPT_OSS,
    "chosen_sigmoid": {"router_scores": "chosen_sigmoid", "router_normalize": False},
    "one_expert": {"experts_per_token": 1, "router_normalize": False},
    "all_experts": {"experts_per_token": 8, "router_normalize": False},
    "many_experts": {"experts": 14, "experts_per_token": 4},
    "in_float32": {"router_product_dtype": "float32", "router_weight_dtype": "float32"},
    "in_the_model_s_dtype": {"router_score_dtype": "model"},
}
MIXTURES: dict[str, dict[str, Any]] = {
    "softmax": {},
    "sigmoid_groups": DEEPSEEK | SHARED,
    "shared": SHARED,
    "shared_gate": SHARED | {"shared_gate": True},
    "weighted_input": {"router_scores": "chosen_sigmoid", "router_normalize": False, "expert_weighted": "input"},
    "limited": GPT_OSS,
    "limited_shared": SHARED | GPT_OSS,
    "not_gated": {"gated_feed_forward": False, "feed_forward_bias": True, "activation": "gelu_erf"},
    "many_experts": {"experts": 14, "experts_per_token": 4},
}
ROUNDS = 100  # after which a port's experts score too much alike
# known bug -> the cases that must reveal it
CATCHES = {
    "MOE1": "router/softmax router/sigmoid router/sigmoid_groups mixture_of_experts/softmax transformer/mixtral",
    "MOE2": "router/chosen_softmax mixture_of_experts/limited transformer/gpt_oss",
    "MOE3": "mixture_of_experts/many_experts transformer/mixtral",
    "MOE4": "mixture_of_experts/limited decoder_layer/gpt_oss transformer/gpt_oss",
    "MOE5": "router/large_selection_bias",
    "MOE6": "router/selection_bias router/sigmoid_groups router/large_selection_bias transformer/deepseek",
    "MOE7": "router/selection_bias router/sigmoid_groups transformer/deepseek",
    "MOE8": "transformer/deepseek",
    "MOE9": "router/sigmoid_groups transformer/deepseek",
    "MOE10": "router/sigmoid router/sigmoid_groups transformer/deepseek",
    "MOE11": "mixture_of_experts/weighted_input",
    "MOE12": "router/softmax mixture_of_experts/softmax transformer/mixtral",
    "MOE13": "mixture_of_experts/limited_shared transformer/qwen2_moe",
    "MOE14": "router/exact_in_float32 router/in_float32 transformer/mixtral",
    "MOE15": "router/sigmoid_groups transformer/deepseek",
    "MOE16": "router/chosen_softmax transformer/gpt_oss",
    "MOE17": "router/not_normalized router/one_expert transformer/qwen2_moe",
    "MOE18": "router/groups_below_zero",
    "MOE19": "router/groups_by_best",
    "MOE20": "router/softmax transformer/mixtral",
    "MOE21": "mixture_of_experts/softmax transformer/mixtral",
    "RTL1": "router_loss/balance router_loss/padded router_loss/large_logits training_loss/routers",
    "RTL2": "router_loss/z router_loss/padded router_loss/large_logits training_loss/routers",
    "SNK1": """
        scaled_dot_product_attention/sink scaled_dot_product_attention/sink_causal scaled_dot_product_attention/sink_step
        multi_head_attention/sink transformer/gpt_oss transformer/sinks_of_local_layers decode_in_steps/gpt_oss
    """,
    "SNK2": "scaled_dot_product_attention/sink_causal scaled_dot_product_attention/sink_weights transformer/gpt_oss",
}


def cases(build: Builder) -> Iterator[Case]:
    """Yields routers, mixtures, sinks, limits, multipliers, and whole decoders."""
    for case in _cases(build):
        yield dataclasses.replace(case, catches=tuple(id_ for id_, names in CATCHES.items() if case.id in names.split()))


def _cases(build: Builder) -> Iterator[Case]:
    for name, changes in ROUTERS.items():
        config = _config(build, **changes)
        fixed = {"selection_bias": _below_zero(config)} if name == "groups_below_zero" else None
        yield decisive(build.make("router", name, config, fixed=fixed, x_btd="b t d"))
    yield _exact(build)
    yield _large_bias(build)
    for name, changes in MIXTURES.items():
        yield decisive(build.make("mixture_of_experts", name, _config(build, **changes), x_btd="b t d"))
    yield build.make("feed_forward", "limited", _dense(build, gate_limit=1.6, hidden_offset=1.0), x_btd="b t d")
    yield build.make("feed_forward", "hidden_offset", _dense(build, hidden_offset=0.5), x_btd="b t d")
    token = rng("experts ids").integers(0, 23, (B, T))
    yield build.make("embedding", "multiplier", build.config(embedding_multiplier=0.3), token=token)
    yield from _router_losses(build)
    yield from _sinks(build)
    yield from _models(build)


def _config(build: Builder, **changes: Any) -> TransformerConfig:
    layers: dict[str, Any] = {"encoder_layers": 0, "decoder_layers": 1}
    if build.fixed.get("experts"):  # the port's own experts
        return build.config("mixtral_8x7b", OWN | EXPERTS, **layers | changes)
    return build.config("mixtral_8x7b", OWN, **layers | EXPERTS | changes)


def _dense(build: Builder, **changes: Any) -> TransformerConfig:
    return _config(build, experts=0, **changes)


def decisive(case: Case, margin: float = 0.09) -> Case:
    """Returns the case with other inputs for the tokens whose experts score almost like others.

    margin: between the chosen experts and the others, as a part of the range of scores.
    """
    generator = rng(f"{case.id} decisive")
    x_btd = case.inputs["x_btd"].copy()
    for _ in range(ROUNDS):
        found = dataclasses.replace(case, inputs=dict(case.inputs) | {"x_btd": x_btd.copy()})
        decisions = Decisions()
        with decisions.recorded(), contextlib.suppress(ValueError):  # raised if the port's values do not fit
            answer(found)
        bounds = [margin / 2 * np.ptp(scores_btx, axis=-1, keepdims=True) for scores_btx in decisions.scores]
        close = {(token.row, token.place) for token, *_ in decisions.undecided(bounds)}
        if not close:
            return found
        for place in sorted(close):
            x_btd[place] = generator.standard_normal(x_btd.shape[2])
    return found


def _exact(build: Builder) -> Case:
    """Returns scores that float32 tells apart and half precision does not: sums of two products of
    powers of two, with the larger score at the higher expert.
    """
    config = _config(build, router_product_dtype="float32", router_weight_dtype="float32", experts_per_token=1, router_normalize=False)
    kernel_dx = np.zeros((config.model_width, config.experts))
    kernel_dx[0], kernel_dx[1:2, min(3, config.experts - 1)] = 1.0, 2.0**-12  # a port may fix the sizes
    x_btd = np.zeros((1, 2, config.model_width))
    x_btd[..., :2] = 1.0
    x_btd[0, 1, 0] = 4.0
    return build.make("router", "exact_in_float32", config, fixed={"kernel": kernel_dx}, x_btd=x_btd)


def _below_zero(config: TransformerConfig) -> np.ndarray:
    return -1.5 + 0.5 * rng("selection bias below zero").standard_normal(config.experts)


def _large_bias(build: Builder) -> Case:
    """Returns a selection bias around 7 and scores whose spread half precision cannot represent."""
    config = _config(build, **{name: value for name, value in DEEPSEEK.items() if not name.startswith("router_group")})
    generator = rng("large selection bias")
    fixed = {
        "selection_bias": 7 + 0.1 * generator.random(config.experts),
        "kernel": 0.1 * generator.standard_normal((config.model_width, config.experts)),
    }
    return decisive(build.make("router", "large_selection_bias", config, fixed=fixed, dtypes=SINGLE, x_btd="b t d"))


def _router_losses(build: Builder) -> Iterator[Case]:
    """Yields both terms, alone and together, with padding on both sides, no token, large logits, and a whole model."""
    config, layers = _config(build), 2
    shape, padded = (layers, B, T, config.experts), ragged(B, T) & left_padding(B, T)[::-1]
    large = 30 * rng("router loss large").standard_normal(shape).clip(-2, 2)
    both: dict[str, Any] = {"router_aux_weight": 0.7, "router_z_weight": 0.3}
    rows: dict[str, dict[str, Any]] = {
        "balance": {"router_aux_weight": 0.7},
        "z": {"router_z_weight": 0.3, "mask_bt": padded},
        "padded": {"mask_bt": padded, **both},
        "no_token": {"mask_bt": np.zeros((B, T), bool), **both},
        "large_logits": {"logits_lbtx": large, "mask_bt": padded, **both},
        "infinite_where_not_counted": {"logits_lbtx": np.where(padded[..., None], large, np.inf), "mask_bt": padded, **both},
    }
    for name, given in rows.items():
        yield build.make("router_loss", name, config, **{"logits_lbtx": shape, **given})
    whole = _config(build, decoder_layers=layers, padding_id=0)
    target = ids("router loss", 23, 0, left_padding(B, T) & ragged(B, T))
    yield build.make("training_loss", "routers", whole, dtypes=SINGLE, source=None, target=target, smoothing=0.1, total=31, **both)


def _sinks(build: Builder) -> Iterator[Case]:
    """Yields sinks with masks, a window, a cached step and a query that sees no key."""
    shapes: dict[str, Any] = {"query_bthk": f"b {S} h k", "key_bsgk": f"b {S} g k", "value_bsge": f"b {S} g e", "sink_h": "h"}
    masked: dict[str, Any] = {"mask_bhts": left_padding(B, S)[:, None, None]}
    rows: dict[str, dict[str, Any]] = {
        "sink": {},
        "sink_causal": {"causal": True, **masked},
        "sink_weights": {"causal": True, "window": 3, "return_weights": True, **masked},
        "sink_step": {"query_bthk": "b 1 h k", "causal": True, "window": 4},
        "sink_cap": {"cap": 1.5, "bias_bhts": "1 h 7 7"},
    }
    for name, given in rows.items():
        yield build.make("scaled_dot_product_attention", name, build.config(**HEADS), **(shapes | given))
    config = _dense(build, attention_sinks="all", attention_bias=True)
    x: dict[str, Any] = {"query_btd": "b t d", "memory_bsd": "b t d", "causal": True}
    yield build.make("multi_head_attention", "sink", config, **x, mask_bhts=ragged(B, T)[:, None, None])


def _models(build: Builder) -> Iterator[Case]:
    """Yields layers and decoders with experts, sinks and multipliers, and cached steps."""
    x: dict[str, Any] = {"x_btd": "b t d"}
    granite = {"residual_multiplier": 0.4, "embedding_multiplier": 3.0, "score_scale": 0.3, "logit_scale": 0.25}
    layers = {"mixtral": {}, "gpt_oss": GPT_OSS | {"attention_sinks": "all"}, "granite": granite | {"experts": 0}}
    for name, changes in layers.items():
        layer = build.make("decoder_layer", name, _config(build, **changes), **x, self_mask_bhts=ragged(B, T)[:, None, None])
        yield decisive(layer, margin=0.15)
    sinks = {"layer_pattern": ("local", "global"), "window": 3, "local_rotary_base": 500.0}
    kinds: dict[str, dict[str, Any]] = {
        "mixtral": {"experts": 14, "experts_per_token": 4},
        "deepseek": DEEPSEEK | SHARED | {"expert_pattern": (False, True)},
        "qwen2_moe": SHARED | {"shared_gate": True, "router_normalize": False, "query_key_value_bias": True, "gate_limit": 1.7},
        "gpt_oss": GPT_OSS | sinks | {"attention_sinks": "all", "attention_bias": True},
        "sinks_of_local_layers": sinks | {"experts": 0, "attention_sinks": "local"},
        "granite": granite | {"experts": 0, "tie_logits": True},
        "granite_moe": granite | SHARED | {"router_scores": "chosen_softmax", "router_normalize": False},
    }
    mask_bt = left_padding(B + 1, 2 * T)[:-1]
    for name, changes in kinds.items():
        config = _config(build, decoder_layers=2, **changes)
        target = ids(f"experts {name}", 23, None, np.ones((B, 2 * T), bool))
        given: dict[str, Any] = {"target": target, "target_mask_bt": mask_bt}
        yield build.make("transformer", name, config, dtypes=SINGLE if config.experts else DTYPES, source=None, **given)
        if name == "mixtral":
            yield build.make("routed_experts", name, config, dtypes=SINGLE, **given)
        if name in ("mixtral", "gpt_oss"):
            steps = build.make("decode_in_steps", name, config, memory_bsd=None, **given)
            yield dataclasses.replace(steps, inputs=dict(steps.inputs) | {"splits": (4, 1, 3, 2)}, dtypes=SINGLE)
