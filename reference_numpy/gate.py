"""How a gated feed-forward network multiplies its gate and hidden layer."""

from typing import NamedTuple

__all__ = ["Gate"]


class Gate(NamedTuple):
    """The choices in `activation(gate) * (hidden + offset)`.

    limit: clips the gate to at most this before the activation, and the hidden layer to at most
    this in size; None clips nothing. offset: added to the hidden layer. Source: OpenAI 2025,
    gpt-oss, published code.
    """

    limit: float | None = None
    offset: float = 0.0
