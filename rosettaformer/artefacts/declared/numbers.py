"""Numbers of a config: windows, caps, scales, epsilons, and those that an activation is known by."""

import math
from collections.abc import Iterator

import numpy as np

from .evidence import COMMON, RTOL, Evidence, Finding

LOG2E = math.log2(math.e)
# activation -> operations that compute it, and numbers that do
_ACTIVATIONS: dict[str, tuple[set[str], tuple[float, ...], str]] = {
    "gelu_erf": (
        {"erf", "erfc", "gelu none", "gelu approximate=false", "gelu approximate=0"},
        (math.sqrt(0.5), math.sqrt(2), -math.sqrt(0.5)), "erf, or 0.707107 before it",
    ),
    "gelu_tanh": (
        {"gelu tanh", "fastgelu", "gelu approximate=true", "gelu approximate=1"},
        (0.044715, 0.044715 * math.sqrt(2 / math.pi), 2 * 0.044715 * math.sqrt(2 / math.pi)), "0.044715",
    ),
    "gelu_sigmoid": ({"quickgelu"}, (1.702, -1.702), "1.702"),
    "silu": (
        {"sigmoid", "logistic", "silu", "swish", "quickgelu", "exp", "exponential", "exp2", "tanh"}, (),
        "sigmoid, and nothing it is computed by",
    ),
}  # fmt: skip


def findings(evidence: Evidence) -> Iterator[Finding]:
    """Yields the numbers that are not in the graph."""
    yield from _window(evidence)
    yield from _scales(evidence)
    if not evidence.constants.opaque:
        yield from _epsilon(evidence)
        yield from _activation(evidence)


def layers(evidence: Evidence) -> range:
    """Returns the layers of the longer stack."""
    return range(max(evidence.config.encoder_layers, evidence.config.decoder_layers))


def _window(evidence: Evidence) -> Iterator[Finding]:
    config, constants = evidence.config, evidence.constants
    window = config.window
    used = any(config.layer_kind(layer).window for layer in layers(evidence))
    if not used or window <= 2 or (constants.longest is not None and constants.longest <= window):
        return
    forms = [window, window - 1, window + 1]
    numbers = {float(form) for form in forms}
    if numbers & COMMON or constants.sides & {*forms} or evidence.holds(*numbers, *(-form for form in numbers)):
        return
    wide = [value for _, value in constants.values if value.ndim >= 2 and min(value.shape[-2:]) > 1]
    masks = (value for value in wide if value.dtype == bool or len(np.unique(value)) == 2)
    if constants.longest is not None and any(True for _ in masks):
        return  # a window may be drawn in a mask of fixed lengths
    yield evidence.finding("window", str(window), forms)


def _epsilon(evidence: Evidence) -> Iterator[Finding]:
    config = evidence.config
    epsilon = config.epsilon
    sides = {1, config.model_width, config.key_size, config.heads * config.key_size, config.key_value_heads * config.key_size}
    others = [(place, value) for place, value in evidence.constants.epsilons if not math.isclose(value, epsilon, rel_tol=RTOL)]
    if not others and epsilon not in COMMON and not evidence.holds(*(epsilon * side for side in sides)):
        yield evidence.finding("epsilon", f"{epsilon:g}", [epsilon])
    for value in dict.fromkeys(value for _, value in others):
        places = [place for place, own in others if own == value]
        more = f" and {len(places) - 3} more places" * (len(places) > 3)
        yield Finding("epsilon", f"{evidence.says('epsilon', f'{epsilon:g}')}; it is {value:g} in {', '.join(places[:3])}{more}")


def _scales(evidence: Evidence) -> Iterator[Finding]:
    config, constants = evidence.config, evidence.constants
    usual = config.key_size**-0.5
    for field, cap in (("score_cap", config.score_cap), ("logit_cap", config.logit_cap)):
        applies = field == "score_cap" or config.decoder_layers or config.masked_language_head
        if cap is not None and applies and cap not in COMMON and not evidence.holds(cap, 1 / cap):
            yield evidence.finding(field, f"{cap:g}", [cap, 1 / cap])
    scale = config.score_scale
    if scale is not None and not math.isclose(scale, usual, rel_tol=1e-5) and not _folded(evidence):
        forms = (scale, math.sqrt(scale), 1 / scale, math.sqrt(1 / scale))
        others = (scale * LOG2E, math.sqrt(scale * LOG2E), scale / (config.score_cap or 1))
        if not {*forms} & COMMON and not evidence.holds(*forms, *others):
            yield evidence.finding("score_scale", f"{scale:g}", forms)
    root = math.sqrt(config.model_width)
    if config.scale_embedding and not constants.from_shapes and root not in COMMON and not evidence.holds(root, 1 / root):
        yield evidence.finding("scale_embedding", f"{root:g}", [root])
    last = (config.logit_scale, 1 / config.logit_scale)
    if config.decoder_layers and not {*last} & COMMON and not _folded(evidence) and not evidence.holds(*last):
        yield evidence.finding("logit_scale", f"{config.logit_scale:g}", last)


def _folded(evidence: Evidence) -> bool:
    return evidence.constants.scales_fold or evidence.constants.from_shapes


def _activation(evidence: Evidence) -> Iterator[Finding]:
    activation = evidence.config.activation
    if activation in _ACTIVATIONS:
        operations, numbers, looked = _ACTIVATIONS[activation]
        if not operations & evidence.constants.operations and not evidence.holds(*numbers):
            yield evidence.finding("activation", activation, [looked])
