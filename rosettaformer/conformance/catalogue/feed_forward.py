"""Defects of the feed-forward network."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from reference_numpy import feed_forward

from .defect import CONFIGURED, LOADED, Defect, bound, on_arguments

__all__ = ["DEFECTS"]


def _other_gelu(name: str) -> str:
    return {"gelu_erf": "gelu_tanh", "gelu_tanh": "gelu_erf", "gelu_sigmoid": "gelu_tanh"}.get(name, name)


def _quick_gelu(name: str) -> str:
    return {"gelu_erf": "gelu_sigmoid", "gelu_tanh": "gelu_sigmoid", "gelu_sigmoid": "gelu_erf"}.get(name, name)


def _kernels_reshaped(parameters: Any) -> Any:
    return {name: dict(dense) | {"kernel": dense["kernel"].reshape(dense["kernel"].T.shape).T} for name, dense in parameters.items()}


def _applied_twice(original: Callable, x: np.ndarray, name: str) -> np.ndarray:
    return original(original(x, name), name)


def _network(order: Callable[..., Any]) -> dict[str, Callable]:
    """The network with its activation at other places: a function of the network without one, the activation, and x."""

    def altered(original: Callable, *args: Any, **options: Any) -> np.ndarray:
        given = bound(original, *args, **options)
        active, x_btd = feed_forward.activation, given.pop("x_btd")

        def linear(x_btd: np.ndarray) -> np.ndarray:
            with mock.patch.object(feed_forward, "activation", lambda x, name: x):
                return original(x_btd=x_btd, **given)

        return order(linear, lambda x: active(x, given["activation_name"]), x_btd, lambda x_btd: original(x_btd=x_btd, **given))

    return {"feed_forward.feed_forward": altered}


def _hidden_bias_after(original: Callable, parameters: Any, *rest: Any, **options: Any) -> np.ndarray:
    hidden, active = parameters["hidden"], feed_forward.activation
    if "bias" not in hidden:
        return original(parameters, *rest, **options)
    own = dict(parameters) | {"hidden": hidden | {"bias": np.zeros_like(hidden["bias"])}}
    with mock.patch.object(feed_forward, "activation", lambda x, name: active(x, name) + hidden["bias"]):
        return original(own, *rest, **options)


def _bias_times(factor: float, *layers: str) -> dict[str, Callable]:
    """The network in whose layers of these names the bias is multiplied by a number."""

    def change(parameters: Any) -> Any:
        own = {name: dict(parameters[name]) for name in layers if "bias" in parameters[name]}
        for layer in own.values():
            layer["bias"] = layer["bias"] * layer["bias"].dtype.type(factor)
        return dict(parameters) | own

    return {"feed_forward.feed_forward": on_arguments(parameters=change)}


_NETWORK: dict[str, Any] = {
    "torch": "return self.output(self.dropout(self.activation(self.hidden(x))))",
    "tf": "return self.output(self.dropout(self.activation(self.hidden(x))))  # Dense(..., activation=...) of the first layer alone",
    "jax": "return self.output(self.dropout(self.activation(self.hidden(x))))",
}
DEFECTS = (
    Defect(
        id="FFN1",
        title="the other form of GELU: tanh for erf, erf for tanh, tanh for sigmoid",
        what="`x Phi(x)` for its tanh approximation, or the reverse: the frameworks' defaults differ. Where the config says the sigmoid "
        "form it is the tanh one.",
        shows="Errors of up to 5e-4 near |x| = 2.7, none far away. A sweep of the activation shows it.",
        torch='F.gelu(x, approximate="none")  # the default; "tanh" for gelu_tanh',
        tf="keras.activations.gelu(x, approximate=False)  # the default; True for gelu_tanh",
        jax="jax.nn.gelu(x, approximate=False)  # the default is True, the tanh form",
        elsewhere=CONFIGURED,
        evidence="pocket-tts#278, mlx-examples#1057",
        replaces={"feed_forward.activation": on_arguments(name=_other_gelu)},
    ),
    Defect(
        id="FFN2",
        title="quick GELU, x sigmoid(1.702 x), for GELU, or the reverse",
        what="`x / (1 + exp(-1.702 x))` in place of GELU, or `x Phi(x)` where the config says the sigmoid form.",
        shows="Errors of up to 0.02 near |x| = 2.3. A sweep of the activation shows it.",
        torch='F.gelu(x)  # or F.gelu(x, approximate="tanh"), as the config says',
        tf="keras.activations.gelu(x)  # or with approximate=True, as the config says",
        jax="jax.nn.gelu(x, approximate=False)  # or True, as the config says",
        elsewhere=CONFIGURED,
        evidence="tinygrad#526",
        replaces={"feed_forward.activation": on_arguments(name=_quick_gelu)},
    ),
    Defect(
        id="FFN3",
        title="a kernel of axes (in, out) is read as (out, in)",
        what="The kernel's numbers are reshaped to the other layout, not transposed: GPT-2's Conv1D stores (in, out), Linear (out, in).",
        shows="The network computes with scrambled kernels; no error, since the sizes agree. Any input shows it.",
        torch="linear.weight.data = conv1d.weight.data.T.contiguous()  # a transpose, never .view or .reshape",
        tf="dense.kernel.assign(tf.transpose(linear_weight))  # Dense stores (in, out), torch's Linear (out, in)",
        jax='params["kernel"] = linear_weight.T  # Dense stores (in, out), torch\'s Linear (out, in)',
        elsewhere="the kernel is reshaped where it is applied",
        evidence="transformers#311, nntile#370",
        replaces={"feed_forward.feed_forward": on_arguments(parameters=_kernels_reshaped)},
    ),
    Defect(
        id="FFN4",
        title="the activation is missing",
        what="`x W_1 W_2` instead of `activation(x W_1) W_2`: two layers that are one.",
        shows="The network is linear. Any input shows it.",
        variants={"the activation is applied twice": {"feed_forward.activation": _applied_twice}},
        **_NETWORK,
        evidence="minimal_lczero#1",
        replaces={"feed_forward.activation": lambda original, x, name: x},
    ),
    Defect(
        id="FFN5",
        title="the activation follows the second layer, too",
        what="`activation(activation(x W_1 + b_1) W_2 + b_2)`: the last layer has an activation, or it alone has one.",
        shows="The network adds nothing below 0 to the residual, with ReLU. Any input shows it.",
        variants={
            "the activation follows the second layer instead of the first": _network(lambda linear, active, x, network: active(linear(x))),
            "the activation precedes the first layer": _network(lambda linear, active, x, network: linear(active(x))),
        },
        **_NETWORK,
        evidence="derived, not reported",
        replaces=_network(lambda linear, active, x, network: active(network(x))),
    ),
    Defect(
        id="FFN6",
        title="the residual is added inside the feed-forward",
        what="`x + FFN(x)`, to which the layer around it adds x once more.",
        shows="The network's output is too near its input. Any input shows it.",
        **_NETWORK,
        evidence="hiersumm#28",
        replaces=_network(lambda linear, active, x, network: x + network(x)),
    ),
    Defect(
        id="FFN7",
        title="the hidden bias is added after the activation",
        what="`activation(x W_1) + b_1` instead of `activation(x W_1 + b_1)`; or a bias is added twice, or missing.",
        shows="The bias shifts what it should switch. A hidden bias that is not zero shows it.",
        elsewhere=LOADED,
        variants={
            "the hidden bias is added twice": _bias_times(2.0, "hidden"),
            "the output bias is added twice": _bias_times(2.0, "output"),
            "the feed-forward's biases are missing": _bias_times(0.0, "hidden", "output"),
        },
        **_NETWORK,
        evidence="derived, not reported",
        replaces={"feed_forward.feed_forward": _hidden_bias_after},
    ),
)
