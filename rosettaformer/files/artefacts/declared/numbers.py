"""Searches a graph for the numbers and sizes of a config, and for lower precision."""

import math
from collections.abc import Iterator

import numpy as np

from . import words
from .evidence import COMMON, RTOL, Evidence, Finding

LOG2E = math.log2(math.e)
# activation -> operations and numbers that compute it, and a description for messages
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
        "sigmoid, nor anything that computes it",
    ),
}  # fmt: skip


def numbers(evidence: Evidence) -> Iterator[Finding]:
    """Yields a finding for each number that the graph lacks."""
    yield from _window(evidence)
    yield from _scales(evidence)
    if not evidence.constants.opaque:
        yield from _epsilon(evidence)
        yield from _activation(evidence)


def layers(evidence: Evidence) -> range:
    """Returns the layer numbers of the longer stack."""
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
        return  # a mask of fixed length may contain the window
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
        yield Finding("epsilon", words.EPSILON.format(says=evidence.says("epsilon", f"{epsilon:g}"), value=value, places=words.few(places)))


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


_MULTIPLES = (8, 16, 32, 64, 128, 256, 512, 1024)  # exporters pad tables to multiples of these
_FLOATS = {"float", "float32", "float64", "double", "float16", "bfloat16", "f32", "f64", "f16", "bf16"}


def sizes(evidence: Evidence) -> Iterator[Finding]:
    """Yields a finding for each size that no tensor has."""
    config, constants = evidence.config, evidence.constants
    shapes = [weight.shape for weight in constants.weights.values()]
    sides = evidence.sides
    width, hidden, tables = config.model_width, config.feed_forward_width, dict(_tables(evidence))
    missing = [field for field, rows in tables.items() if not sides & {rows, *(math.ceil(rows / by) * by for by in _MULTIPLES)}]
    if width not in sides:
        if tables and not missing:  # otherwise the graph does not contain the weights
            yield evidence.finding("model_width", str(width), [f"tensor with a side of {width}"])
        return
    for field in missing:
        yield evidence.finding(field, str(tables[field]), [f"tensor with a side of {tables[field]}"])
    if constants.opaque or not all(weight.dtype in _FLOATS for weight in constants.weights.values() if math.prod(weight.shape) > 4096):
        return
    if not sides & {hidden, 2 * hidden}:
        yield evidence.finding("feed_forward_width", str(hidden), [f"tensor with a side of {hidden} or {2 * hidden}"])
    else:
        yield from _layers(evidence, [shape for shape in shapes if {width, hidden} <= {*shape} or {width, 2 * hidden} <= {*shape}])
    yield from _heads(evidence)


def _tables(evidence: Evidence) -> Iterator[tuple[str, int]]:
    """Yields the sizes of embedding tables."""
    config = evidence.config
    if config.encoder_layers:
        yield "source_vocabulary", config.source_vocabulary
    if config.decoder_layers and (not config.encoder_layers or config.target_vocabulary != config.source_vocabulary):
        yield "target_vocabulary", config.target_vocabulary
    if config.positions == "learned" and evidence.constants.longest is None:
        yield "max_positions", config.max_positions + config.position_offset


def _layers(evidence: Evidence, shapes: list[tuple[int, ...]]) -> Iterator[Finding]:
    """Counts the feed-forward kernels, if each is a separate matrix."""
    config = evidence.config
    width, hidden, layers = config.model_width, config.feed_forward_width, config.encoder_layers + config.decoder_layers
    others = {
        width,
        config.source_vocabulary,
        config.target_vocabulary,
        config.heads * config.key_size,
        config.max_positions,
        config.segments,
    }
    if {hidden, 2 * hidden} & others or 2 * hidden == width or any(len(shape) > 2 for shape in shapes):
        return
    single, each = sum(hidden in shape for shape in shapes), 3 if config.gated_feed_forward else 2
    double = len(shapes) - single
    usual = {(3 * layers, 0), (layers, layers)} if config.gated_feed_forward else {(2 * layers, 0)}
    if (single, double) not in usual:
        field = "decoder_layers" if config.decoder_layers else "encoder_layers"
        yield evidence.finding(field, str(layers), [f"{each * layers} matrices of {width} and {hidden}"], holds=f"{len(shapes)}")


def _heads(evidence: Evidence) -> Iterator[Finding]:
    """Searches for the widths of queries and keys, separate or fused, and for the head size."""
    config = evidence.config
    heads, groups, size = config.heads, config.key_value_heads, config.key_size
    fused = (heads + 2 * groups) * size
    shapes = [{*weight.shape} for weight in evidence.constants.weights.values()]
    sides = evidence.sides
    if not evidence.whole(size) and evidence.named("key_size"):
        yield evidence.finding("key_size", str(size), [f"{size} as the size of a head"])
    elif not evidence.whole(size):
        yield evidence.finding("heads", str(heads), [f"{size} as the size of a head"])
    elif not any({heads, size} <= shape for shape in shapes) and not sides & {heads * size, fused}:
        yield evidence.finding("heads", str(heads), [f"tensor with a side of {heads * size} ({heads} x {size}) or {fused}"])
    elif groups != heads and not any({groups, size} <= shape for shape in shapes):
        wanted = {groups * size, fused, 2 * groups * size} - {heads * size}
        looked = f"tensor with a side of {groups * size} ({groups} x {size}) or {fused}"
        yield from [] if sides & wanted else [evidence.finding("key_value_heads", str(groups), [looked])]


_BITS = {"float64": 64, "double": 64, "float": 32, "float32": 32, "float16": 16, "bfloat16": 16}


def precision(evidence: Evidence) -> Iterator[Finding]:
    """Yields casts to a dtype narrower than all weights, and float32 numbers in a float64 graph."""
    weights = [_BITS[weight.dtype] for weight in evidence.constants.weights.values() if weight.dtype in _BITS]
    narrowest = min(weights, default=0)
    casts = [(place, "float32" if to == "float" else to) for place, to in evidence.constants.casts if _BITS.get(to, 64) < narrowest]
    for dtype in dict.fromkeys(dtype for _, dtype in casts):
        places = dict.fromkeys(place for place, to in casts if to == dtype)
        yield Finding("precision", words.CAST.format(held=f"float{narrowest}", dtype=dtype, places=words.few(places)))
    if narrowest == 64:
        yield from _float32_numbers(evidence)


def _float32_numbers(evidence: Evidence) -> Iterator[Finding]:
    config = evidence.config
    scale = config.key_size**-0.5 if config.score_scale is None else config.score_scale
    known = {"the attention's scale": scale, "the root of the width": math.sqrt(config.model_width), "epsilon": config.epsilon}
    known |= {"GELU's 0.044715": 0.044715, "GELU's sqrt(2 / pi)": math.sqrt(2 / math.pi)} if config.activation == "gelu_tanh" else {}
    for name, number in known.items():
        rounded = float(np.float32(number))
        if rounded != number and evidence.floats(rounded) and not evidence.floats(number):
            yield Finding("precision", words.ROUNDED.format(name=name, rounded=rounded, number=number))
