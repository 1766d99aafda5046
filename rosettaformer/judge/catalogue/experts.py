"""Known bugs of mixtures of experts and of attention sinks."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import TransformerConfig, experts, softmax
from reference_numpy.values import Heads

from ..expectation.patching import patched
from .alteration import CONFIGURED, Alteration, Altered, Array, Replaces, Variants, on_arguments, on_result, setting

Config = TransformerConfig
ROUTER, WEIGHTS, CHOICE, LOGITS = "experts.router", "experts.weights", "experts.choice", "experts.router_logits"


def _config(*functions: str, **changes: Callable[[Config], Any]) -> Replaces:
    """Calls these functions with another config: by field, a function of the config."""
    return dict.fromkeys(functions, on_arguments(config=lambda config: _with(config, changes)))


def _with(config: Config, changes: Mapping[str, Callable[[Config], Any]]) -> Config:
    try:
        return config.replace(**{name: change(config) for name, change in changes.items()})
    except ValueError:  # the sizes do not allow it
        return config


def _instead(field: str, value: Any, of: Any) -> dict[str, Callable[[Config], Any]]:
    """Replaces one value of a field by another."""
    return {field: lambda config: value if getattr(config, field) == of else getattr(config, field)}


def _without(name: str) -> Callable[[Any], Any]:
    return lambda parameters: {key: value for key, value in parameters.items() if key != name}


def _bias_in_weights(original: Callable, parameters: Any, config: Config, x_btd: Array) -> Array:
    def weights(original: Callable, config: Config, logits_btx: Array, chosen_btx: Array) -> tuple[Array, Array]:
        number = logits_btx.dtype.type
        scores_btx = np.where(chosen_btx, experts.choice_scores(parameters, config, logits_btx), number(0))
        total_bt1 = np.ones_like(scores_btx[..., :1])
        if config.router_normalize:
            total_bt1 = scores_btx.sum(-1, keepdims=True) + number(config.router_epsilon)
        return scores_btx / total_bt1 * number(config.router_scale), total_bt1

    with patched({WEIGHTS: weights} if "selection_bias" in parameters else {}):
        return original(parameters, config, x_btd)


def _rounded(array: Array) -> Array:
    return array.astype(ml_dtypes.bfloat16).astype(array.dtype)


def _rounded_selection(parameters: Any) -> Any:
    if "selection_bias" not in parameters:
        return parameters
    return dict(parameters) | {"selection_bias": _rounded(parameters["selection_bias"])}


def _experts(order: Callable[[int], list[int]]) -> Replaces:
    """Reads the experts in another order, a function of their number."""

    def read(parameters: Any) -> Any:
        own = {name: {leaf: array[order(len(array))] for leaf, array in dense.items()} for name, dense in parameters["experts"].items()}
        return dict(parameters) | {"experts": own}

    return {"experts.mixture_of_experts": on_arguments(parameters=read)}


def _bias_unweighted(original: Callable, parameters: Any, config: Config, x_1nd: Array, weight_n1: Array) -> Array:
    if "bias" not in parameters["output"] or config.expert_weighted == "input":
        return original(parameters, config, x_1nd, weight_n1)
    own = dict(parameters) | {"output": _without("bias")(parameters["output"])}
    return original(own, config, x_1nd, weight_n1) + parameters["output"]["bias"]


def _by_expert(original: Callable, config: Config, scores_btx: Array) -> Array:
    """Every expert chooses tokens, as many as there would be on average."""
    batch, length, count = scores_btx.shape
    flat = scores_btx.reshape(-1, count).T
    each = max(1, batch * length * config.experts_per_token // count)
    return experts.largest(flat, each).T.reshape(scores_btx.shape)


def _scale_first(original: Callable, config: Config, logits_btx: Array, chosen_btx: Array) -> tuple[Array, Array]:
    """The scale cancels in the division."""
    return original(config.replace(router_scale=1.0) if config.router_normalize else config, logits_btx, chosen_btx)


def _sinks(change: Callable[..., Array | None]) -> Replaces:
    """Attends with other sinks: (sinks, heads, scores) -> sinks."""

    def altered(original: Callable, query_bthk: Array, key_bsgk: Array, mask_bhts: Any, scores: Any, sink_h: Array | None = None) -> Array:
        own = None if sink_h is None else change(sink_h, query_bthk, scores)
        return original(query_bthk, key_bsgk, mask_bhts, scores, own)

    return {"attention.attention_weights": altered}


def _last_key(original: Callable, heads: Heads, *rest: Any, **options: Any) -> Array:
    """The weights of the others are divided by their sum again, as if the sink were not there."""
    return original(heads._replace(sink_h=None), *rest, **options)


def _as_key(original: Callable, scores_bhts: Array, mask_bhts: Any, sink_h: Array | None) -> tuple[Array, Any]:
    """The sink is hidden where the last key is."""
    joined_bhts, visible_bhts = original(scores_bhts, mask_bhts, sink_h)
    if sink_h is None or visible_bhts is None:
        return joined_bhts, visible_bhts
    visible_bhts = visible_bhts.copy()
    visible_bhts[..., -1] = visible_bhts[..., -2]
    return joined_bhts, visible_bhts


def _half_gate(original: Callable, gate_btf: Array, linear_btf: Array, gate: Any) -> tuple[Array, Array]:
    """Clips the gate on both sides."""
    gate_btf, linear_btf = original(gate_btf, linear_btf, gate)
    return (gate_btf if gate.limit is None else np.maximum(gate_btf, gate_btf.dtype.type(-gate.limit))), linear_btf


def _of_probabilities(original: Callable, logits_lbtx: Array, *rest: Any, **options: Any) -> Array:
    return original(softmax.softmax(logits_lbtx), *rest, **options)


def _of_probabilities_vjp(original: Callable, logits_lbtx: Array, *rest: Any, **options: Any) -> dict[str, Array]:
    g_lbtx = original(softmax.softmax(logits_lbtx), *rest, **options)["logits_lbtx"]
    return {"logits_lbtx": softmax.softmax_vjp(logits_lbtx, cotangent=g_lbtx)["logits"]}


ALTERED: Altered = {
    "MOE1": _config(ROUTER, router_normalize=lambda config: False),
    "MOE2": {LOGITS: on_arguments(parameters=_without("bias"))},
    "MOE3": _experts(lambda count: sorted(range(count), key=str)),
    "MOE4": {"experts.weighted": _bias_unweighted},
    "MOE5": {"experts.choice_scores": on_arguments(parameters=_rounded_selection)},
    "MOE6": {ROUTER: _bias_in_weights},
    "MOE7": {"experts.choice_scores": on_arguments(parameters=_without("selection_bias"))},
    "MOE8": _config(CHOICE, **_instead("router_group_mask", "zero", of="minus_infinity")),
    "MOE9": _config(CHOICE, **_instead("router_group_score", "best", of="best_two")),
    "MOE10": _config(ROUTER, **_instead("router_scores", "softmax", of="sigmoid")),
    "MOE11": _config("experts.weighted", **_instead("expert_weighted", "output", of="input")),
    "MOE12": _config(
        CHOICE, experts_per_token=lambda config: config.experts, router_groups=lambda config: 1, router_groups_kept=lambda config: 1
    ),
    "MOE13": _config("experts.shared_expert", gate_limit=lambda config: None),
    "MOE14": {LOGITS: on_result(_rounded)},
    "MOE15": {WEIGHTS: _scale_first},
    "MOE16": _config(WEIGHTS, **_instead("router_scores", "softmax", of="chosen_softmax")),
    "MOE17": _config(ROUTER, router_normalize=lambda config: True),
    "MOE18": _config(CHOICE, **_instead("router_group_mask", "minus_infinity", of="zero")),
    "MOE19": _config(CHOICE, **_instead("router_group_score", "best_two", of="best")),
    "MOE20": _config(ROUTER, **_instead("router_scores", "sigmoid", of="softmax")),
    "MOE21": _config("experts.weighted", **_instead("expert_weighted", "input", of="output")),
    "RTL1": {"loss.router_loss": _of_probabilities, "loss.router_loss_vjp": _of_probabilities_vjp},
    "RTL2": dict.fromkeys(("loss.router_loss", "loss.router_loss_vjp"), on_arguments(mask_bt=None)),
    "SNK1": {"attention.scaled_dot_product_attention": _last_key},
    "SNK2": {"attention.beside_sink": _as_key},
}
VARIANTS: Variants = {
    "MOE3": {"every expert has the weights of the next one": _experts(lambda count: [*range(1, count), 0])},
    "MOE9": {
        "the groups of experts are ignored": _config(CHOICE, router_groups=lambda config: 1, router_groups_kept=lambda config: 1),
    },
    "MOE12": {"every expert chooses tokens, instead of every token experts": {CHOICE: _by_expert}},
    "MOE13": {
        "neither the gate nor the hidden layer is clipped": {"feed_forward.clipped": lambda original, gate, linear, limits: (gate, linear)},
        "the gate is clipped on both sides": {"feed_forward.clipped": _half_gate},
        "the hidden layer has no offset": {"feed_forward.gated": on_arguments(gate=lambda gate: gate._replace(offset=0.0))},
    },
    "MOE15": {"the weights are not scaled": _config(ROUTER, router_scale=lambda config: 1.0)},
    "MOE16": {
        "the chosen experts' weights are sigmoids instead of a softmax": _config(
            WEIGHTS, **_instead("router_scores", "chosen_sigmoid", of="chosen_softmax")
        ),
    },
    "SNK1": {
        "the sinks are multiplied by the scale of the scores": _sinks(
            lambda sink_h, query_bthk, scores: sink_h * sink_h.dtype.type(scores.factor(query_bthk.shape[3]))
        ),
        "the sinks are subtracted": _sinks(lambda sink_h, query_bthk, scores: -sink_h),
    },
}


def routings() -> Iterator[Alteration]:
    """Yields settings of the choice, the shared expert and multipliers."""
    fix = "choose as many experts as the config's num_experts_per_tok"
    for name, step in (("one more", 1), ("one fewer", -1)):
        altered = on_arguments(config=lambda config, step=step: _with(config, {"experts_per_token": lambda c: c.experts_per_token + step}))
        yield setting(f"experts_per_token={name}", "router", f"a token chooses {name} expert", fix, altered, elsewhere=CONFIGURED)
    mixture = "mixture_of_experts"
    for part, title in (("shared", "the shared expert is missing"), ("shared_gate", "the shared expert has no gate")):
        yield setting(
            f"{part}=none", mixture, title, "add the shared expert, times the sigmoid of its gate", on_arguments(parameters=_without(part))
        )
    title = "the shared expert's gate is not a sigmoid"
    yield setting("shared_gate=linear", mixture, title, "apply the sigmoid to the gate", _linear_gate)
    title, fix = "outputs of sub-layers are added without the residual multiplier", "multiply them by the config's residual_multiplier"
    yield setting("residual_multiplier=1", "decoder_layer", title, fix, lambda original, config, y_btd: y_btd, "layers.branch")
    title, fix = "embeddings are not multiplied by the embedding multiplier", "multiply them by the config's embedding_multiplier"
    yield setting("embedding_multiplier=1", "embedding", title, fix, on_arguments(multiplier=1.0), elsewhere=CONFIGURED)


def _linear_gate(original: Callable, parameters: Any, config: Config, x_btd: Array) -> Array:
    if "shared_gate" not in parameters:
        return original(parameters, config, x_btd)
    y_btd = original(_without("shared_gate")(_without("shared")(parameters)), config, x_btd)
    shared_btd = experts.shared_expert(_without("shared_gate")(parameters), config, x_btd)
    return y_btd + experts.shared_gate(parameters, x_btd) * shared_btd
