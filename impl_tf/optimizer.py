"""The parameter update: Adam with decoupled weight decay, and gradient clipping (ADAM)."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import tensorflow as tf

from reference_numpy.parameters import flatten, nest

from .framework import Tree, decays, keras, register, variable_index

__all__ = ["Adam", "adam", "clip_global_norm", "decay_mask"]

Nest = TypeVar("Nest")
# The parameters of a layer that do not decay.
SPARED = ("bias", "selection_bias", "scale", "offset", "sink")


@register
class Adam(keras.optimizers.Optimizer):
    """`p = p - rate (m_hat / (sqrt(v_hat) + epsilon) + decay p)`, as a Keras optimizer.

    `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`, `m_hat = m / (1 - b1^n)` and
    `v_hat = v / (1 - b2^n)`, where n is the step, counted from 1. Biases, scales, offsets and sinks
    do not decay, unless `exclude_from_weight_decay` changes that.

    keras.optimizers.AdamW adds epsilon to the root before the correction, which makes it a
    different epsilon in every step, decays in a separate pass, and rounds its constants to float32.
    """

    def __init__(
        self,
        learning_rate: float | Callable[..., tf.Tensor],
        beta_1: float,
        beta_2: float,
        epsilon: float,
        weight_decay: float = 0.0,
        **kwargs: object,
    ) -> None:
        rate = learning_rate if callable(learning_rate) else _Constant(learning_rate)
        super().__init__(rate, **kwargs)
        self.decay, self.beta_1, self.beta_2, self.epsilon = weight_decay, beta_1, beta_2, epsilon
        self.exclude_from_weight_decay(var_names=[rf"\b{part}\b" for part in SPARED])

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if not self.built:
            super().build(variables)
            self.first_moments, self.second_moments = self.add_optimizer_variables(
                variables, ["momentum", "velocity"]
            )

    def moments(self, variable: keras.Variable | tf.Variable) -> tuple[tf.Variable, tf.Variable]:
        """Returns the first and second moment of a variable."""
        index = variable_index(self, variable)
        return self.first_moments[index].value, self.second_moments[index].value

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> None:
        # Table rows of unused tokens have gradient 0, and their moments decay.
        gradient = tf.convert_to_tensor(gradient)
        m, v = self.moments(variable)
        m.assign(self.beta_1 * m + (1 - self.beta_1) * gradient)
        v.assign(self.beta_2 * v + (1 - self.beta_2) * tf.square(gradient))
        n = tf.cast(self.iterations.value + 1, tf.float64)
        m_hat, v_hat = (
            x / tf.cast(1 - tf.constant(beta, tf.float64) ** n, x.dtype)
            for x, beta in ((m, self.beta_1), (v, self.beta_2))
        )
        update = m_hat / (tf.sqrt(v_hat) + self.epsilon)
        if self.decay and decays(self, variable):
            update += self.decay * variable
        variable.assign_sub(tf.cast(learning_rate, variable.dtype) * update)

    def get_config(self) -> dict[str, object]:
        betas = {"beta_1": self.beta_1, "beta_2": self.beta_2}
        own = {"weight_decay": self.decay, **betas, "epsilon": self.epsilon}
        return {**super().get_config(), **own}


adam = Adam  # the name in the other packages


def clip_global_norm(gradients: Nest, limit: float) -> Nest:
    """`g = g min(1, limit / norm)`, `norm = sqrt(sum g^2)` over all tensors of a nest.

    Keras' `global_clipnorm` multiplies by `limit * min(1/norm, 1/limit)`, which is not always 1 for
    short gradients. Squares are summed in float64: the norm of millions of float32 numbers would
    lose digits. Raises ValueError unless limit is greater than 0.
    """
    if not limit > 0:
        raise ValueError(f"limit must be greater than 0; got {limit}")
    flat = tf.nest.flatten(gradients)
    norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(tf.cast(g, tf.float64))) for g in flat]))
    factor = tf.where(norm > limit, limit / norm, tf.ones_like(norm))
    return tf.nest.map_structure(lambda g: g * tf.cast(factor, g.dtype), gradients)


def decay_mask(parameters: Tree) -> Tree:
    """Returns True for kernels and tables, which decay; False for biases, scales and offsets."""
    return nest(
        {name: name.rpartition(".")[2] in ("kernel", "table") for name in flatten(parameters)}
    )


@register
class _Constant(keras.optimizers.schedules.LearningRateSchedule):
    """A constant float64 rate; an optimizer's own variable would round it to float32."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        return tf.constant(self.rate, tf.float64)

    def get_config(self) -> dict[str, object]:
        return {"rate": self.rate}
