"""Known bugs of norms: place and order in a layer, axes, mean, parameters and precision."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import arithmetic, layers, normalization

from .alteration import Altered, Array, Replaces, Variants, on_arguments, on_call
from .deviation import BOTH, LAYER, RMS, normalised, root_mean_square, variance
from .residual import LAYERS, SUBLAYERS, from_input

IN, OUT = "layers.residual_in", "layers.residual_out"


def _placed(before: str, after: str, *names: str) -> Replaces:
    """Uses one norm placement before these sub-layers (default: all) and another after them.

    A parallel block, whose sub-layers may share a norm, can only lose norms.
    """

    def under(placement: str) -> Callable:
        def change(config: Any, name: str, **others: Any) -> dict[str, Any]:
            meant = not names or name in names
            fits = not config.parallel or (before, after) == ("post", "pre")
            return {"config": config.replace(norm_placement=placement)} if meant and fits else {}

        return on_call(change)

    return {IN: under(before), OUT: under(after)}


def _renamed(**others: str) -> Replaces:
    """Gives these sub-layers' norms the parameters of other norms, if the layer has them."""

    def read(parameters: Any, name: str, **given: Any) -> dict[str, Any]:
        other = f"{others.get(name, name)}_norm"
        return {"parameters": dict(parameters) | {f"{name}_norm": parameters[other]}} if other in parameters else {}

    return dict.fromkeys((IN, OUT), on_call(read))


def normed(parameters: Any, config: Any, name: str, x_btd: Array) -> Array:
    """Applies a norm, if the layer has it."""
    there = name in parameters or not config.norm_scale
    return normalization.norm(parameters.get(name, {}), config, x_btd) if there else x_btd


def _norm_of(original: Callable, parameters: Any, config: Any, name: str, *rest: Any) -> Array:
    """Normalizes the result again if it ends in a norm."""
    y_btd = original(parameters, config, name, *rest)
    ends = config.norm_placement == ("post" if len(rest) > 1 else "pre")
    return normed(parameters, config, f"{name}_norm", y_btd) if ends else y_btd


def _normed_memory(original: Callable, parameters: Any, config: Any, x_btd: Array, memory: Any, *rest: Any) -> Array:
    if config.norm_placement == "pre":
        memory = memory._replace(vectors_bsd=layers.residual_in(parameters, config, "cross_attention", memory.vectors_bsd))
    return original(parameters, config, x_btd, memory, *rest)


def _everywhere(original: Callable, parameters: Any, config: Any, name: str, x_btd: Array) -> Array:
    """Applies an untrained norm where the first layer has none."""
    missing = config.norm_placement == "pre" and config.norm_scale and f"{name}_norm" not in parameters
    return original(parameters, config, name, _fresh(config, x_btd) if missing else x_btd)


def _fresh(config: Any, x_btd: Array) -> Array:
    scale = np.full(x_btd.shape[-1], float(not config.norm_one_plus_scale), x_btd.dtype)
    return normalization.norm({"scale": scale, "offset": np.zeros_like(scale)}, config, x_btd)


def _over(*axes: int) -> Replaces:
    """Normalizes over these axes together."""
    return {LAYER: _normalised_over(axes, mean=True), RMS: _normalised_over(axes, mean=False)}


def _normalised_over(axes: tuple[int, ...], mean: bool) -> Callable:
    """Normalizes over these axes together. mean: whether to subtract the mean."""

    def altered(
        original: Callable, parameters: Any, x_btd: Array, epsilon: float, one_plus_scale: bool = False, cast_before_scale: bool = False
    ) -> Array:
        wide, size = arithmetic.upcast_half(x_btd), np.prod([x_btd.shape[axis] for axis in axes])
        if not size:
            return original(parameters, x_btd, epsilon, one_plus_scale, cast_before_scale)
        centred = wide - np.sum(wide, axis=axes, keepdims=True) / wide.dtype.type(size) if mean else wide
        deviation = np.sqrt(np.sum(centred * centred, axis=axes, keepdims=True) / wide.dtype.type(size) + wide.dtype.type(epsilon))
        return normalization.scaled(parameters, centred / deviation, x_btd.dtype, one_plus_scale, cast_before_scale)

    return altered


def _with(change: Callable[[Any], dict[str, Array]]) -> Replaces:
    """Changes scale and offset of the norms; a missing offset counts as 0."""

    def changed(parameters: Any) -> dict[str, Array]:
        both = {"offset": np.zeros_like(parameters["scale"]), **parameters}
        return {name: value for name, value in change(both).items() if name in parameters}

    return dict.fromkeys(BOTH, on_arguments(parameters=changed))


def _one_pass(x: Array) -> Array:
    mean = arithmetic.mean(x, -1)
    return np.maximum(arithmetic.mean(x * x, -1) - mean * mean, 0)


def _without_offset(
    original: Callable, parameters: Any, x_btd: Array, epsilon: float, one_plus_scale: bool = False, cast_before_scale: bool = False
) -> Array:
    return normalised(root_mean_square, mean=False)(
        original, {"scale": parameters["scale"]}, x_btd, epsilon, one_plus_scale, cast_before_scale
    )


ALTERED: Altered = {
    "NRM16": _placed("post", "pre"),
    "NRM17": _renamed(feed_forward="self_attention"),
    "NRM18": dict.fromkeys((IN, OUT), _norm_of),
    "NRM19": dict.fromkeys(LAYERS, from_input("attention.multi_head_attention", "memory_bsd", within="layers.self_attention")),
    "NRM32": {IN: _everywhere},
    "NRM2": dict.fromkeys(BOTH, on_arguments(epsilon=1e-3)),
    "NRM4": {LAYER: normalised(lambda x, epsilon: np.sqrt(_one_pass(x) + epsilon))},
    "NRM5": {
        LAYER: normalised(lambda x, epsilon: np.sqrt(variance(x, 1) + epsilon), axis=1),
        RMS: normalised(lambda x, epsilon: np.sqrt(arithmetic.mean(x * x, 1) + epsilon), mean=False),
    },
    "NRM7": dict.fromkeys(BOTH, on_arguments(cast_before_scale=True)),
    "NRM15": dict.fromkeys(BOTH, on_arguments(epsilon=1e-5)),
    "NRM20": {LAYER: normalised(root_mean_square, mean=False)},
    "NRM21": _with(lambda p: {"scale": p["scale"] + 1, "offset": p["offset"]}),
}
VARIANTS: Variants = {
    "NRM16": {f"the norm of {words} is missing": _placed("post", "pre", name) for name, words in SUBLAYERS.items()}
    | {"only the feed-forward has a norm": _placed("post", "pre", "self_attention", "cross_attention")},
    "NRM17": {
        "the feed-forward's norm is also used for the self-attention": _renamed(self_attention="feed_forward"),
        "the self-attention's norm is used for every sub-layer": _renamed(cross_attention="self_attention", feed_forward="self_attention"),
        "the self-attention's norm is also used for the cross-attention": _renamed(cross_attention="self_attention"),
        "the norms of self-attention and feed-forward are swapped": _renamed(self_attention="feed_forward", feed_forward="self_attention"),
        "the norms of cross-attention and feed-forward are swapped": _renamed(
            cross_attention="feed_forward", feed_forward="cross_attention"
        ),
        "the norms of self- and cross-attention are swapped": _renamed(self_attention="cross_attention", cross_attention="self_attention"),
    },
    "NRM18": {"every sub-layer is normalized both before and after": _placed("pre", "post")},
    "NRM19": {"the memory is normalized with the cross-attention's norm": {"layers.cross_attention": _normed_memory}},
    "NRM2": {"the norm has no epsilon": dict.fromkeys(BOTH, on_arguments(epsilon=0.0))},
    "NRM5": {
        "the norm runs over the batch": _over(0),
        "the norm runs over positions and features": _over(1, 2),
        "the norm runs over batch and positions, like a batch norm": _over(0, 1),
        "the norm runs over all axes": _over(0, 1, 2),
    },
    "NRM20": {
        "the layer norm is an RMS norm: no mean subtraction, no offset": {LAYER: _without_offset},
        "the mean is subtracted only in the variance": {LAYER: normalised(lambda x, epsilon: np.sqrt(variance(x) + epsilon), mean=False)},
        "the mean is not subtracted in the variance": {LAYER: normalised(root_mean_square)},
    },
    "NRM21": {
        "1 is subtracted from the norm's scale": _with(lambda p: {"scale": p["scale"] - 1, "offset": p["offset"]}),
        "the norm's scale and offset are swapped": _with(lambda p: {"scale": p["offset"], "offset": p["scale"]}),
        "the norm's offset is added before the scale": _with(lambda p: {"scale": p["scale"], "offset": p["scale"] * p["offset"]}),
        "the norm's offset is subtracted": _with(lambda p: {"scale": p["scale"], "offset": -p["offset"]}),
    },
}
