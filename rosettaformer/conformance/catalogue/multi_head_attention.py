"""Defects of multi-head attention: how heads are split and merged, and what becomes of the result."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..reference.patching import within
from .alteration import Altered, Variants
from .combinators import on_arguments, on_call, on_result
from .kernels import FUSED, OUTPUT, PROJECTIONS, of_projection

Array = np.ndarray
ATTENTION = "attention.scaled_dot_product_attention"
PARTS = ("query", "key", "value", "key and value", "query and key")


def _split_without_transpose(*names: str) -> Mapping[str, Callable]:
    """Splits these projections into heads that are stretches of positions."""
    meant = {PROJECTIONS[name] for name in names}

    def altered(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
        y = original(subscripts, parameters, x)
        if subscripts not in meant:
            return y
        b, t, h, k = y.shape
        return y.reshape(b, h, t, k).swapaxes(1, 2)

    return {"attention._projection": altered}


def _keys_reshaped(key_bsgk: Array, **others: Any) -> dict[str, Any]:
    """`b g s k` read as `b g k s` by its bytes."""
    batch, source, heads, size = key_bsgk.shape
    stored = np.ascontiguousarray(key_bsgk.swapaxes(1, 2)).reshape(batch, heads, size, source)
    return {"key_bsgk": stored.transpose(0, 3, 1, 2)}


def _mean_of_heads(weights_bhts: Array) -> Array:
    return np.broadcast_to(weights_bhts.mean(axis=1, keepdims=True, dtype=weights_bhts.dtype), weights_bhts.shape)


def _merged(change: Callable[[Array], Array]) -> Mapping[str, Callable]:
    """Changes the heads `b t h e` before the output projection."""

    def altered(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
        return original(subscripts, parameters, change(x) if subscripts == OUTPUT else x)

    return {"attention._projection": altered}


def _first_head(x_bthe: Array) -> Array:
    return np.where(np.arange(x_bthe.shape[2])[:, None] == 0, x_bthe, x_bthe.dtype.type(0))


def _bias_for_every_head(parameters: Any) -> Any:
    output = parameters["output"]
    if "bias" not in output:
        return parameters
    return dict(parameters) | {"output": output | {"bias": output["bias"] * output["bias"].dtype.type(output["kernel"].shape[0])}}


def _twice(*names: str) -> Mapping[str, Callable]:
    """Adds the biases of these projections twice."""
    doubled = of_projection(lambda parameters, inputs: {name: x + x if name == "bias" else x for name, x in parameters.items()}, *names)
    return {"attention._projection": doubled}


def _merged_without_transpose(original: Callable, subscripts: str, parameters: Any, x: Array) -> Array:
    if subscripts == OUTPUT:
        x = np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape)
    return original(subscripts, parameters, x)


def _first_of_the_batch(output: Any) -> Any:
    """The first row's output in every row; weights, if any, unchanged."""
    if isinstance(output, tuple):
        return _first_of_the_batch(output[0]), output[1]
    return np.broadcast_to(output[:1], output.shape)


def _concatenated_to_key_width(original: Callable, parameters: Any, *rest: Any, **options: Any) -> Any:
    _, heads, key_size = parameters["query"]["kernel"].shape
    value_size = parameters["value"]["kernel"].shape[2]
    if key_size != value_size:
        raise ValueError(f"cannot reshape heads of size {value_size} into width {heads * key_size}")
    return original(parameters, *rest, **options)


ALTERED: Altered = {
    "MHA1": _split_without_transpose(*FUSED),
    "MHA2": {"attention._projection": _merged_without_transpose},
    "MHA7": {"attention.multi_head_attention": on_result(_first_of_the_batch)},
    "MHA9": {"attention.multi_head_attention": _concatenated_to_key_width},
    "MHA18": _merged(lambda x_bthe: x_bthe[:, :, ::-1]),
    "MHA20": {ATTENTION: on_call(_keys_reshaped)},
    "MHA21": {"attention.multi_head_attention": on_arguments(parameters=_bias_for_every_head)},
}
VARIANTS: Variants = {
    "MHA1": {f"the heads of {words} are split without a transpose": _split_without_transpose(*words.split(" and ")) for words in PARTS},
    "MHA18": {
        "every head has the mean of all heads' weights": {ATTENTION: within({"softmax.softmax": on_result(_mean_of_heads)})},
        "only the first head reaches the output": _merged(_first_head),
        "every head's output is the first one's": _merged(lambda x_bthe: np.repeat(x_bthe[:, :, :1], x_bthe.shape[2], axis=2)),
        "every head's output is the mean of all": _merged(
            lambda x_bthe: np.repeat(x_bthe.mean(axis=2, keepdims=True, dtype=x_bthe.dtype), x_bthe.shape[2], axis=2)
        ),
    },
    "MHA21": {f"the bias of the {name} projection is added twice": _twice(name) for name in ("query", "value", "output")}
    | {"the projections' biases are added twice": _twice(*PROJECTIONS)},
}
