"""The position-wise feed-forward network and its activations."""

import math

import numpy as np

from . import arithmetic, checks, dropout
from .arrays import Array, Gradients, Mask, Tree
from .config import ACTIVATIONS
from .gate import Gate

__all__ = ["activation", "activation_vjp", "feed_forward", "feed_forward_vjp"]


def activation(x: Array, name: str) -> Array:
    """Elementwise activation by name (GELU); half-precision dtypes compute in float32.

    relu: `y = max(x, 0)`. relu_squared: `y = max(x, 0)^2` (So et al. 2021). gelu_erf:
    `y = x/2 (1 + erf(x / sqrt 2))` (Hendrycks & Gimpel 2016), with its approximations gelu_tanh:
    `y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, and gelu_sigmoid:
    `y = x sigmoid(1.702 x) = x/2 (1 + tanh(0.851 x))`. silu:
    `y = x sigmoid(x) = x/2 (1 + tanh(x/2))` (ibid.). Raises ValueError on another name.
    """
    if name == "relu":
        return np.maximum(x, x.dtype.type(0))
    if name == "relu_squared":
        return np.maximum(x, x.dtype.type(0)) ** 2
    wide = arithmetic.upcast_half(x)
    number = wide.dtype.type
    if name == "gelu_erf":
        gate = arithmetic.erf(wide * number(0.5**0.5))
    elif name == "gelu_tanh":
        gate = arithmetic.tanh(number((2 / math.pi) ** 0.5) * (wide + number(0.044715) * wide**3))
    elif name == "gelu_sigmoid":
        gate = arithmetic.tanh(number(0.851) * wide)
    elif name == "silu":
        gate = arithmetic.tanh(number(0.5) * wide)
    else:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {name!r}")
    return (number(0.5) * wide * (number(1) + gate)).astype(x.dtype, copy=False)


def activation_vjp(x: Array, name: str, *, cotangent: Array) -> Gradients:
    """Multiplies the cotangent by the derivative; half-precision dtypes compute in float32.

    relu: 1 if x > 0, otherwise 0, including at 0. relu_squared: `2 max(x, 0)`. gelu_erf:
    `Phi(x) + x phi(x)`, phi the normal density. gelu_tanh:
    `(1 + tanh u)/2 + x/2 (1 - tanh^2 u) u'` with `u = sqrt(2/pi) (x + 0.044715 x^3)`;
    gelu_sigmoid: with `u = 0.851 x`; silu: with `u = x/2`.
    """
    wide, g = arithmetic.upcast_half(x), arithmetic.upcast_half(cotangent)
    number = wide.dtype.type
    half = number(0.5)
    if name == "relu":
        slope = (wide > 0).astype(wide.dtype)
    elif name == "relu_squared":
        slope = number(2) * np.maximum(wide, number(0))
    elif name == "gelu_erf":
        density = number((2 * math.pi) ** -0.5) * arithmetic.exp(-half * wide * wide)
        slope = half * (number(1) + arithmetic.erf(wide * number(0.5**0.5))) + wide * density
    elif name == "gelu_tanh":
        root = number((2 / math.pi) ** 0.5)
        gate = arithmetic.tanh(root * (wide + number(0.044715) * wide**3))
        inner = root * (number(1) + number(3 * 0.044715) * wide * wide)
        slope = half * (number(1) + gate) + half * wide * (number(1) - gate * gate) * inner
    elif name in ("gelu_sigmoid", "silu"):
        inner = number(0.851 if name == "gelu_sigmoid" else 0.5)
        gate = arithmetic.tanh(inner * wide)
        slope = half * (number(1) + gate) + half * wide * (number(1) - gate * gate) * inner
    else:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {name!r}")
    return {"x": (g * slope).astype(x.dtype, copy=False)}


def feed_forward(
    parameters: Tree,
    x_btd: Array,
    activation_name: str,
    keep_btf: Mask = None,
    dropout_rate: float = 0.0,
    gate: Gate = Gate(),
) -> Array:
    """`FFN(x) = activation(x W_1 + b_1) W_2 + b_2`, `b t d`, the same at every position.

    Gated: `FFN(x) = (activation(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2`. parameters: hidden.kernel
    `d f`, output.kernel `f d`, if gated gate.kernel `d f`; biases `f`, `d`, `f` if present.
    keep_btf: dropout mask of the hidden layer (if gated, of the product), True = keep. gate: limit
    and offset of the product. Raises ValueError if x is not `b t d`. Source: Vaswani et al. 2017,
    eq. 2; gated: Shazeer 2020, eq. 6.
    """
    checks.check_features("x", x_btd.shape, parameters["hidden"]["kernel"].shape[0])
    hidden_btf, _ = hidden_layer(parameters, x_btd, activation_name, gate)
    dropped_btf = dropout.dropout(hidden_btf, keep_btf, dropout_rate)
    return arithmetic.affine("btf,fd->btd", dropped_btf, parameters["output"])


def feed_forward_vjp(
    parameters: Tree,
    x_btd: Array,
    activation_name: str,
    keep_btf: Mask = None,
    dropout_rate: float = 0.0,
    gate: Gate = Gate(),
    *,
    cotangent: Array,
) -> Gradients:
    """Backward pass through `output`, dropout, activation, `hidden` and, if present, `gate`.
    Returns parameters and x_btd. Clipped numbers pass no gradient.
    """
    hidden_btf, (linear_btf, gate_btf) = hidden_layer(parameters, x_btd, activation_name, gate)
    own, dropped_btf = parameters["output"], dropout.dropout(hidden_btf, keep_btf, dropout_rate)
    g_btf, output = arithmetic.affine_vjp("btf,fd->btd", dropped_btf, own, cotangent)
    g_btf = dropout.dropout_vjp(hidden_btf, keep_btf, dropout_rate, cotangent=g_btf)["x"]
    into, active, x_btf = {"hidden": g_btf}, "hidden", linear_btf
    if gate_btf is not None:
        x_btf, inside_btf = clipped(gate_btf, linear_btf, gate)
        into = {
            "gate": g_btf * offset_by(inside_btf, gate),
            "hidden": g_btf * activation(x_btf, activation_name),
        }
        active = "gate"
    into[active] = activation_vjp(x_btf, activation_name, cotangent=into[active])["x"]
    if gate_btf is not None and gate.limit is not None:
        zero = g_btf.dtype.type(0)
        into["gate"] = np.where(gate_btf == x_btf, into["gate"], zero)
        into["hidden"] = np.where(linear_btf == inside_btf, into["hidden"], zero)
    gradients: Gradients = {"output": output}
    gradient_btd = np.zeros((), x_btd.dtype)
    for name, g_btf in into.items():
        own = parameters[name]
        part_btd, gradients[name] = arithmetic.affine_vjp("btd,df->btf", x_btd, own, g_btf)
        gradient_btd = gradient_btd + part_btd
    return {"parameters": gradients, "x_btd": gradient_btd}


def hidden_layer(
    parameters: Tree, x_btd: Array, activation_name: str, gate: Gate = Gate()
) -> tuple[Array, tuple[Array, Array | None]]:
    """Returns the hidden layer, and its inputs before the activation: `hidden` and `gate`."""
    linear_btf = arithmetic.affine("btd,df->btf", x_btd, parameters["hidden"])
    if "gate" not in parameters:
        return activation(linear_btf, activation_name), (linear_btf, None)
    gate_btf = arithmetic.affine("btd,df->btf", x_btd, parameters["gate"])
    product_btf = gated(gate_btf, linear_btf, activation_name, gate)
    return product_btf, (linear_btf, gate_btf)


def gated(gate_btf: Array, linear_btf: Array, activation_name: str, gate: Gate = Gate()) -> Array:
    """`activation(min(gate, limit)) * (clip(linear, -limit, limit) + offset)`."""
    gate_btf, linear_btf = clipped(gate_btf, linear_btf, gate)
    return activation(gate_btf, activation_name) * offset_by(linear_btf, gate)


def offset_by(linear_btf: Array, gate: Gate) -> Array:
    """Adds the offset of the hidden layer."""
    return linear_btf + linear_btf.dtype.type(gate.offset) if gate.offset else linear_btf


def clipped(gate_btf: Array, linear_btf: Array, gate: Gate) -> tuple[Array, Array]:
    """Clips the gate to at most the limit, and the hidden layer to at most it in size."""
    if gate.limit is None:
        return gate_btf, linear_btf
    limit = gate_btf.dtype.type(gate.limit)
    return np.minimum(gate_btf, limit), np.maximum(np.minimum(linear_btf, limit), -limit)
