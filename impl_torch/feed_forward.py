"""The position-wise feed-forward network and its activations."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_numpy import TransformerConfig, checks
from reference_numpy.config import ACTIVATIONS
from reference_numpy.gate import Gate

from . import precision
from .dropout import Dropout
from .projection import linear

__all__ = ["activation", "FeedForward"]  # noqa: RUF022 - the order of the twins


def activation(x: Tensor, name: str) -> Tensor:
    """Elementwise activation by name (GELU).

    relu: `max(x, 0)`; relu_squared: `max(x, 0)^2`; gelu_erf: `x/2 (1 + erf(x / sqrt 2))`;
    gelu_tanh: `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`; gelu_sigmoid:
    `x sigmoid(1.702 x)`; silu: `x sigmoid(x)`. torch's kernels compute half-precision
    dtypes in float32; it has none for gelu_sigmoid. Raises ValueError on another name.
    """
    if name == "relu":
        return F.relu(x)
    if name == "relu_squared":
        return F.relu(x).square()
    if name == "gelu_erf":
        return F.gelu(x)
    if name == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    if name == "gelu_sigmoid":
        wide = precision.upcast_half(x)
        return (wide * torch.sigmoid(1.702 * wide)).to(x.dtype)
    if name == "silu":
        return F.silu(x)
    raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {name!r}")


class FeedForward(nn.Module):
    """`FFN(x) = activation(x W_1 + b_1) W_2 + b_2`, `b t d`, the same at every position.

    Gated: `FFN(x) = (activation(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2`, with the limit and the
    offset of the config's gate.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.activation_name, self.width = config.activation, config.model_width
        self.gating = config.gate
        width, hidden, bias = self.width, config.feed_forward_width, config.feed_forward_bias
        self.gate = linear(width, hidden, bias) if config.gated_feed_forward else None
        self.hidden = linear(width, hidden, bias)
        self.output = linear(hidden, width, bias)
        self.hidden_dropout = Dropout(config.hidden_dropout_rate)

    def forward(self, x_btd: Tensor, keep_btf: Tensor | None = None) -> Tensor:
        checks.check_features("x", x_btd.shape, self.width)
        gate_btf = None if self.gate is None else self.gate(x_btd)
        active_btf = gated(gate_btf, self.hidden(x_btd), self.activation_name, self.gating)
        return self.output(self.hidden_dropout(active_btf, keep_btf))


def gated(
    gate_btf: Tensor | None, linear_btf: Tensor, activation_name: str, gate: Gate = Gate()
) -> Tensor:
    """`activation(min(gate, limit)) * (clip(linear, -limit, limit) + offset)`; without a gate,
    `activation(linear)`.
    """
    if gate_btf is None:
        return activation(linear_btf, activation_name)
    gate_btf, linear_btf = clipped(gate_btf, linear_btf, gate)
    linear_btf = linear_btf + gate.offset if gate.offset else linear_btf
    return activation(gate_btf, activation_name) * linear_btf


def clipped(gate_btf: Tensor, linear_btf: Tensor, gate: Gate) -> tuple[Tensor, Tensor]:
    """Clips the gate to at most the limit, and the hidden layer to at most it in size."""
    if gate.limit is None:
        return gate_btf, linear_btf
    return gate_btf.clamp(max=gate.limit), linear_btf.clamp(-gate.limit, gate.limit)
