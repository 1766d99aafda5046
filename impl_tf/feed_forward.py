"""The position-wise feed-forward network and its activations."""

import math

import tensorflow as tf

from reference_numpy import TransformerConfig, checks
from reference_numpy.config import ACTIVATIONS
from reference_numpy.gate import Gate

from .dropout import Dropout
from .framework import Configured, register
from .precision import upcast_half
from .projection import Projection

__all__ = ["activation", "FeedForward"]  # noqa: RUF022 - the order of the reference


def activation(x: tf.Tensor, name: str) -> tf.Tensor:
    """Elementwise activation by name (GELU); half-precision dtypes compute in float32.

    relu: `max(x, 0)`. relu_squared: `max(x, 0)^2`. gelu_erf: `x/2 (1 + erf(x / sqrt 2))`.
    gelu_tanh: `x/2 (1 + tanh u)`, `u = sqrt(2/pi) (x + 0.044715 x^3)`, computed as
    `x sigmoid(2u)`, since TensorFlow's float64 tanh is off by 8 ulp. gelu_sigmoid:
    `x sigmoid(1.702 x)`. silu: `x sigmoid(x)`. tf.nn.gelu rounds its constants to float32 even for
    float64. Raises ValueError on another name.
    """
    if name == "relu":
        return tf.nn.relu(x)
    if name == "relu_squared":
        return tf.square(tf.nn.relu(x))
    wide = upcast_half(x)
    if name == "gelu_erf":
        y = 0.5 * wide * (1 + tf.math.erf(wide * 0.5**0.5))
    elif name == "gelu_tanh":
        y = wide * tf.sigmoid(2 * (2 / math.pi) ** 0.5 * (wide + 0.044715 * wide**3))
    elif name == "gelu_sigmoid":
        y = wide * tf.sigmoid(1.702 * wide)
    elif name == "silu":
        y = wide * tf.sigmoid(wide)
    else:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {name!r}")
    return tf.cast(y, x.dtype)


@register
class FeedForward(Configured):
    """`FFN(x) = activation(x W_1 + b_1) W_2 + b_2`, `b t d`, the same at every position.

    Gated: `FFN(x) = (activation(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2`, with the limit and offset
    of `config.gate`. The layers of W_1, W_g and W_2 are `hidden`, `gate` and `output_projection`,
    since Keras reserves `output`.
    """

    def __init__(self, config: TransformerConfig, **kwargs: object) -> None:
        super().__init__(config, **kwargs)
        width, hidden = (config.model_width,), (config.feed_forward_width,)
        bias, dtype, rate = config.feed_forward_bias, self.dtype_policy, config.hidden_dropout_rate
        if config.gated_feed_forward:
            self.gate = Projection(width, hidden, bias, dtype=dtype, name="gate")
        self.hidden = Projection(width, hidden, bias, dtype=dtype, name="hidden")
        self.hidden_dropout = Dropout(rate, dtype=dtype, name="hidden_dropout")
        self.output_projection = Projection(
            hidden, width, bias, dtype=dtype, name="output_projection"
        )

    def call(self, x_btd: tf.Tensor, keep_btf: tf.Tensor | None = None) -> tf.Tensor:
        checks.check_features("x", x_btd.shape, self.config.model_width)
        if self.config.gated_feed_forward:
            gate_btf, linear_btf = self.gate_and_hidden(x_btd)
        else:
            gate_btf, linear_btf = None, self.hidden(x_btd)
        hidden_btf = hidden_layer(self.config, linear_btf, gate_btf)
        return self.output_projection(self.hidden_dropout(hidden_btf, keep_btf))

    def gate_and_hidden(self, x_btd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """`x W_g + b_g` and `x W_1 + b_1`."""
        return self.gate(x_btd), self.hidden(x_btd)


def hidden_layer(
    config: TransformerConfig, linear_btf: tf.Tensor, gate_btf: tf.Tensor | None = None
) -> tf.Tensor:
    """`activation(linear)`, or, with a gate, `gated`."""
    if gate_btf is None:
        return activation(linear_btf, config.activation)
    return gated(gate_btf, linear_btf, config.activation, config.gate)


def gated(
    gate_btf: tf.Tensor, linear_btf: tf.Tensor, activation_name: str, gate: Gate = Gate()
) -> tf.Tensor:
    """`activation(min(gate, limit)) * (clip(linear, -limit, limit) + offset)`."""
    gate_btf, linear_btf = clipped(gate_btf, linear_btf, gate)
    linear_btf = linear_btf + gate.offset if gate.offset else linear_btf
    return activation(gate_btf, activation_name) * linear_btf


def clipped(gate_btf: tf.Tensor, linear_btf: tf.Tensor, gate: Gate) -> tuple[tf.Tensor, tf.Tensor]:
    """Clips the gate to at most the limit, and the hidden layer to at most it in size."""
    if gate.limit is None:
        return gate_btf, linear_btf
    limit = tf.constant(gate.limit, gate_btf.dtype)
    return tf.minimum(gate_btf, limit), tf.clip_by_value(linear_btf, -limit, limit)
