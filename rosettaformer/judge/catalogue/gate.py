"""Known bugs of the feed-forward network's gate."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import arithmetic, feed_forward
from reference_numpy.gate import Gate

from .alteration import Altered, Array, Replaces, Variants, on_arguments
from .weights import sigmoid

Layer = Mapping[str, Array]
NETWORK = "feed_forward.feed_forward"


def _read(change: Callable[[Array, Array], tuple[Array, Array]]) -> Replaces:
    """Reads other gate and hidden kernels and biases: a function of the correct ones."""

    def read(parameters: Any) -> Any:
        if "gate" not in parameters:
            return parameters
        pairs = {leaf: change(parameters["gate"][leaf], parameters["hidden"][leaf]) for leaf in parameters["gate"]}
        gate, hidden = ({leaf: pair[index] for leaf, pair in pairs.items()} for index in (0, 1))
        return dict(parameters) | {"gate": gate, "hidden": hidden}

    return {NETWORK: on_arguments(parameters=read)}


def _every_second(gate: Array, hidden: Array) -> tuple[Array, Array]:
    both = np.concatenate([gate, hidden], axis=-1)
    return both[..., 0::2], both[..., 1::2]


def _in_halves(gate: Array, hidden: Array) -> tuple[Array, Array]:
    both = np.stack([gate, hidden], axis=-1).reshape(*gate.shape[:-1], -1)
    return both[..., : gate.shape[-1]], both[..., gate.shape[-1] :]


def _combined(combine: Callable[[Array, Array, Callable[[Array], Array]], Array]) -> Replaces:
    """Changes how the gate is combined: (gate, hidden layer, activation) -> hidden layer."""

    def altered(original: Callable, gate_btf: Array, linear_btf: Array, activation_name: str, gate: Gate = Gate()) -> Array:
        gate_btf, linear_btf = feed_forward.clipped(gate_btf, linear_btf, gate)
        offset = linear_btf.dtype.type(gate.offset)
        return combine(gate_btf, linear_btf + offset, lambda x: feed_forward.activation(x, activation_name))

    return {"feed_forward.gated": altered}


def _sigmoid(x: Array) -> Array:
    return sigmoid(arithmetic.upcast_half(x)).astype(x.dtype, copy=False)


ALTERED: Altered = {
    "FFN8": _read(lambda gate, hidden: (hidden, gate)),
    "FFN9": _combined(lambda gate_btf, linear_btf, active: active(gate_btf * linear_btf)),
    "FFN10": _combined(lambda gate_btf, linear_btf, active: active(linear_btf)),
}
VARIANTS: Variants = {
    "FFN8": {
        "the fused gate and hidden kernel is read as interleaved columns instead of halves": _read(_every_second),
        "the fused gate and hidden kernel is read as halves instead of interleaved columns": _read(_in_halves),
    },
    "FFN9": {
        "the activation is applied to both the gate and the hidden layer": _combined(
            lambda gate, linear, active: active(gate) * active(linear)
        )
    },
    "FFN10": {
        "the hidden layer is missing: only activation(x W_g) remains": _combined(lambda gate, linear, active: active(gate)),
        "the gate is added instead of multiplied": _combined(lambda gate, linear, active: active(gate) + linear),
        "the gate is a sigmoid regardless of the activation (GLU)": _combined(lambda gate, linear, active: _sigmoid(gate) * linear),
    },
}
