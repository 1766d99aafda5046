"""The position-wise feed-forward network and its activations."""

import math
from collections.abc import Mapping

import numpy as np

from . import arithmetic, checks, dropout

__all__ = ["activation", "feed_forward"]


def activation(x: np.ndarray, name: str) -> np.ndarray:
    """Elementwise, by name; half types compute in float32.

    relu: `max(x, 0)`. gelu_erf: `x/2 (1 + erf(x / sqrt 2))` (Hendrycks & Gimpel 2016).
    gelu_tanh: `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, the same paper's approximation.
    Raises ValueError on another name.
    """
    if name == "relu":
        return np.maximum(x, x.dtype.type(0))
    wide = arithmetic.widen(x)
    number = wide.dtype.type
    if name == "gelu_erf":
        gate = arithmetic.erf(wide * number(0.5**0.5))
    elif name == "gelu_tanh":
        gate = arithmetic.tanh(number((2 / math.pi) ** 0.5) * (wide + number(0.044715) * wide**3))
    else:
        raise ValueError(f"activation must be one of relu, gelu_erf, gelu_tanh; got {name!r}")
    return (number(0.5) * wide * (number(1) + gate)).astype(x.dtype, copy=False)


def feed_forward(
    parameters: Mapping[str, Mapping[str, np.ndarray]],
    x_btd: np.ndarray,
    activation_name: str,
    keep_btf: np.ndarray | None = None,
    dropout_rate: float = 0.0,
) -> np.ndarray:
    """`FFN(x) = activation(x W_1 + b_1) W_2 + b_2`, the same at every position (a convolution of width 1).

    parameters: hidden.kernel `d f`, hidden.bias `f`, output.kernel `f d`, output.bias `d`. keep_btf: dropout mask of the hidden layer.
    Returns `b t d`. Raises ValueError where x is not `b t d`. Source: Vaswani et al. 2017, eq. 2.
    """
    hidden, output = parameters["hidden"], parameters["output"]
    checks.check_features("x", x_btd.shape, hidden["kernel"].shape[0])
    hidden_btf = arithmetic.einsum("btd,df->btf", x_btd, hidden["kernel"]) + hidden["bias"]
    active_btf = dropout.dropout(activation(hidden_btf, activation_name), keep_btf, dropout_rate)
    return arithmetic.einsum("btf,fd->btd", active_btf, output["kernel"]) + output["bias"]
