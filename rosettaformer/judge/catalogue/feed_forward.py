"""Known bugs of the feed-forward network."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import feed_forward

from ..expectation.patching import patched
from .alteration import Altered, Variants, bound, on_arguments, on_result


def _other_gelu(name: str) -> str:
    return {"gelu_erf": "gelu_tanh", "gelu_tanh": "gelu_erf", "gelu_sigmoid": "gelu_tanh"}.get(name, name)


def _quick_gelu(name: str) -> str:
    return {"gelu_erf": "gelu_sigmoid", "gelu_tanh": "gelu_sigmoid", "gelu_sigmoid": "gelu_erf"}.get(name, name)


def _kernels_reshaped(parameters: Any) -> Any:
    return {name: dict(dense) | {"kernel": dense["kernel"].reshape(dense["kernel"].T.shape).T} for name, dense in parameters.items()}


def _applied_twice(original: Callable, x: np.ndarray, name: str) -> np.ndarray:
    return original(original(x, name), name)


def _network(order: Callable[..., Any]) -> dict[str, Callable]:
    """Moves the activation. order: (linear network, activation, x, network) -> output."""

    def altered(original: Callable, *args: Any, **options: Any) -> np.ndarray:
        given = bound(original, *args, **options)
        active, x_btd = feed_forward.activation, given.pop("x_btd")

        def linear(x_btd: np.ndarray) -> np.ndarray:
            with patched({"feed_forward.activation": lambda active, x, name: x}):
                return original(x_btd=x_btd, **given)

        return order(linear, lambda x: active(x, given["activation_name"]), x_btd, lambda x_btd: original(x_btd=x_btd, **given))

    return {"feed_forward.feed_forward": altered}


def _hidden_bias_after(original: Callable, parameters: Any, *rest: Any, **options: Any) -> np.ndarray:
    hidden = parameters["hidden"]
    if "bias" not in hidden or "gate" in parameters:
        return original(parameters, *rest, **options)
    own = dict(parameters) | {"hidden": hidden | {"bias": np.zeros_like(hidden["bias"])}}
    with patched({"feed_forward.activation": on_result(lambda x: x + hidden["bias"])}):
        return original(own, *rest, **options)


def _bias_times(factor: float, *layers: str) -> dict[str, Callable]:
    """Multiplies these layers' biases by a number."""

    def change(parameters: Any) -> Any:
        own = {name: dict(parameters[name]) for name in layers if "bias" in parameters[name]}
        for layer in own.values():
            layer["bias"] = layer["bias"] * layer["bias"].dtype.type(factor)
        return dict(parameters) | own

    return {"feed_forward.feed_forward": on_arguments(parameters=change)}


ALTERED: Altered = {
    "FFN1": {"feed_forward.activation": on_arguments(name=_other_gelu)},
    "FFN2": {"feed_forward.activation": on_arguments(name=_quick_gelu)},
    "FFN3": {"feed_forward.feed_forward": on_arguments(parameters=_kernels_reshaped)},
    "FFN4": {"feed_forward.activation": lambda original, x, name: x},
    "FFN5": _network(lambda linear, active, x, network: active(network(x))),
    "FFN6": _network(lambda linear, active, x, network: x + network(x)),
    "FFN7": {"feed_forward.feed_forward": _hidden_bias_after},
}
VARIANTS: Variants = {
    "FFN4": {"the activation is applied twice": {"feed_forward.activation": _applied_twice}},
    "FFN5": {
        "the activation follows the second layer instead of the first": _network(lambda linear, active, x, network: active(linear(x))),
        "the activation precedes the first layer": _network(lambda linear, active, x, network: linear(active(x))),
    },
    "FFN7": {
        "the hidden bias is added twice": _bias_times(2.0, "hidden"),
        "the output bias is added twice": _bias_times(2.0, "output"),
        "the feed-forward's biases are missing": _bias_times(0.0, "hidden", "output"),
    },
}
