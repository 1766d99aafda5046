"""Defects of the update and of the learning rate."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import optimizer
from reference_numpy.parameters import flatten, nest

from .defect import Defect, on_arguments, on_call, on_result
from .schedule_settings import Rate, other_rate
from .update_settings import divide, root, stepped

__all__ = ["DEFECTS"]

Tree = Mapping[str, Any]
FOREVER = 10**9  # a step at which both corrections of the bias are 1 in every dtype


def _epsilon_hat(epsilon: float, beta_2: float, step: int, **others: Any) -> dict[str, Any]:
    return {"epsilon": epsilon / (1 - beta_2**step) ** 0.5}


def _coupled_decay(parameters: Tree, gradients: Tree, weight_decay: float, **others: Any) -> dict[str, Any]:
    values, decays = flatten(parameters), flatten(optimizer.decay_mask(parameters))
    penalised = {
        name: gradient + gradient.dtype.type(weight_decay * decays[name]) * values[name] for name, gradient in flatten(gradients).items()
    }
    return {"gradients": nest(penalised), "weight_decay": 0.0}


def _step(**parts: Callable) -> Mapping[str, Callable]:
    return {"optimizer.adam": stepped(**parts)}


def _corrected(first: Callable[[Any], float], second: Callable[[Any], float]) -> Mapping[str, Callable]:
    """Moments that are divided by other numbers."""
    return _step(
        first_hat=lambda s: divide(s.first, s.number(first(s))),
        second_hat=lambda s: divide(s.second, s.number(second(s))),
    )


def _rate(rate: Rate) -> Mapping[str, Callable]:
    return {"schedule.noam": other_rate(rate)}


def _decays_everything(decays: Tree) -> dict[str, Any]:
    return nest(dict.fromkeys(flatten(decays), True))


def _from_zero(original: Callable, step: Any, width: int, warmup: int, dtype: Any = np.float64) -> np.ndarray:
    before = np.asarray(step) - 1
    rate = original(np.maximum(before, 1), width, warmup, dtype)
    return np.where(before < 1, rate.dtype.type(0), rate)


DEFECTS = (
    Defect(
        id="OPT1",
        title="epsilon is added to the uncorrected root",
        what="`p - rate sqrt(1 - b2^n) / (1 - b1^n) m / (sqrt(v) + epsilon)`, the paper's shorter form: its epsilon is larger than that of "
        "`m_hat / (sqrt(v_hat) + epsilon)` by `1 / sqrt(1 - b2^n)`.",
        shows="Nothing where gradients are large beside epsilon. Gradients of 1e-8 in the first steps show it.",
        torch="torch.optim.Adam(parameters, eps=epsilon)  # epsilon beside the corrected root",
        tf="keras.optimizers.Adam adds its epsilon to the uncorrected root; write the update, or scale epsilon by sqrt(1 - b2**n)",
        jax="optax.adam(rate, b1, b2, eps=epsilon)  # epsilon beside the corrected root",
        evidence="optax#571, tensorflow#35102",
        replaces={"optimizer.adam": on_call(_epsilon_hat)},
    ),
    Defect(
        id="OPT2",
        title="the moments are not corrected for their bias",
        what="`m / (sqrt(v) + epsilon)` instead of `m_hat / (sqrt(v_hat) + epsilon)`.",
        shows="The first steps are too large or too small by `(1 - b1^n) / sqrt(1 - b2^n)`; later ones agree. Step 1 shows it.",
        torch="torch.optim.Adam(parameters)  # not the AdamWeightDecay of BERT, which leaves the correction out",
        tf="keras.optimizers.Adam()  # not the AdamWeightDecay of BERT, which leaves the correction out",
        jax="optax.scale_by_adam(b1, b2, eps)  # its count must start at 0 and be kept between steps",
        variants={
            "the first moment alone is corrected": _corrected(lambda s: 1 - s.b1**s.n, lambda s: 1),
            "the second moment alone is corrected": _corrected(lambda s: 1, lambda s: 1 - s.b2**s.n),
            "the corrections are exchanged": _corrected(lambda s: 1 - s.b2**s.n, lambda s: 1 - s.b1**s.n),
            "the corrections are those of the step before": _corrected(
                lambda s: 1 - s.b1 ** max(s.n - 1, 0), lambda s: 1 - s.b2 ** max(s.n - 1, 0)
            ),
            "the corrections are those of the next step": _corrected(lambda s: 1 - s.b1 ** (s.n + 1), lambda s: 1 - s.b2 ** (s.n + 1)),
            "the corrections are those of the first step": _corrected(lambda s: 1 - s.b1, lambda s: 1 - s.b2),
            "the moments are multiplied by the corrections": _corrected(lambda s: 1 / (1 - s.b1**s.n), lambda s: 1 / (1 - s.b2**s.n)),
            "the correction of the second moment is outside the root": _step(
                direction=lambda s: divide(s.first_hat, divide(root(s.second), s.number(1 - s.b2**s.n)) + s.epsilon)
            ),
        },
        evidence="google-research/bert#153",
        replaces={"optimizer.adam": on_arguments(step=FOREVER)},
    ),
    Defect(
        id="OPT3",
        title="weight decay goes through the moments",
        what="`g + decay p` enters the moments (L2), instead of `p - rate decay p` beside them: large gradients then decay less.",
        shows="Nothing without weight decay. Any step with it shows it.",
        torch="torch.optim.AdamW(parameters, weight_decay=decay)  # torch.optim.Adam's weight_decay is L2",
        tf="keras.optimizers.AdamW(weight_decay=decay)  # not a kernel_regularizer",
        jax="optax.adamw(rate, weight_decay=decay)  # add_decayed_weights after scale_by_adam, not before it",
        variants={
            "weight decay enters the first moment": _step(first=lambda s: s.b1 * s.m + (1 - s.b1) * (s.g + s.decay * s.p)),
            "weight decay is divided by the root": _step(
                moved=lambda s: s.p - s.rate * divide(s.first_hat + s.decay * s.p, root(s.second_hat) + s.epsilon)
            ),
        },
        evidence="optax#417",
        replaces={"optimizer.adam": on_call(_coupled_decay)},
    ),
    Defect(
        id="OPT4",
        title="norms and biases decay, too",
        component="adam",
        what="Weight decay of every tensor, instead of kernels and tables alone.",
        shows="Scales shrink from 1 towards 0. A step with weight decay on a scale, an offset or a bias shows it.",
        torch="torch.optim.AdamW([{'params': kernels, 'weight_decay': decay}, {'params': others, 'weight_decay': 0.0}])",
        tf="optimizer.exclude_from_weight_decay(var_names=['bias', 'scale', 'offset'])",
        jax="optax.adamw(rate, weight_decay=decay, mask=decay_mask)",
        evidence="keras-bert#60",
        replaces={"optimizer.decay_mask": on_result(_decays_everything)},
    ),
    Defect(
        id="OPT5",
        title="the warm-up is off by one",
        what="Steps are counted from 0: the first rate is 0, and each is that of the step before.",
        shows="The first update changes nothing. The trace of the learning rate shows it.",
        torch="LambdaLR(optimizer, lambda count: noam(count + 1))  # LambdaLR counts from 0",
        tf="def __call__(self, step): return noam(step + 1)  # Keras counts from 0",
        jax="optax.adam(lambda count: noam(count + 1))  # optax counts from 0",
        evidence="gpt-neox#1379, nanoGPT#578",
        replaces={"schedule.noam": _from_zero},
    ),
    Defect(
        id="OPT6",
        title="weight decay is not multiplied by the rate",
        what="`p - rate m_hat / (sqrt(v_hat) + epsilon) - decay p` instead of `p - rate (m_hat / (sqrt(v_hat) + epsilon) + decay p)`: the "
        "decay of Loshchilov & Hutter without its schedule multiplier.",
        shows="Parameters shrink by 1 / rate as fast. A step with weight decay shows it.",
        variants={
            "weight decay is multiplied by the square of the rate": _step(
                moved=lambda s: s.p - s.rate * s.direction - s.rate**2 * s.decay * s.p
            ),
            "the updated parameters decay": _step(moved=lambda s: (s.p - s.rate * s.direction) * (1 - s.rate * s.decay)),
            "weight decay is added": _step(moved=lambda s: s.p - s.rate * (s.direction - s.decay * s.p)),
            "there is no weight decay": _step(moved=lambda s: s.p - s.rate * s.direction),
            "weight decay is half as large: that of decay / 2 p^2": _step(moved=lambda s: s.p - s.rate * (s.direction + s.decay / 2 * s.p)),
            "weight decay is twice as large": _step(moved=lambda s: s.p - s.rate * (s.direction + 2 * s.decay * s.p)),
            "weight decay subtracts rate decay, whatever the parameter": _step(
                moved=lambda s: s.p - s.rate * (s.direction + s.decay * np.sign(s.p))
            ),
        },
        torch="parameter.mul_(1 - rate * decay)  # as torch.optim.AdamW, whose weight_decay is multiplied by lr",
        tf="variable.assign_sub(rate * decay * variable)  # as keras.optimizers.AdamW",
        jax="optax.adamw(rate, weight_decay=decay)  # add_decayed_weights before scale_by_learning_rate, not after it",
        evidence="tensorflow/addons#2282, deeplearning4j#5843",
        replaces=_step(moved=lambda s: s.p - s.rate * s.direction - s.decay * s.p),
    ),
    Defect(
        id="OPT7",
        title="epsilon is added under the root",
        what="`m_hat / sqrt(v_hat + epsilon)` instead of `m_hat / (sqrt(v_hat) + epsilon)`: its epsilon is the root of the given one.",
        shows="Small gradients move the parameters less. Gradients of 1e-4 with an epsilon of 1e-9 show it.",
        variants={
            "epsilon is added to the second moment, before it is corrected": _step(
                direction=lambda s: divide(s.first_hat, root(divide(s.second + s.epsilon, s.number(1 - s.b2**s.n))))
            ),
            "the square of epsilon is added under the root": _step(
                direction=lambda s: divide(s.first_hat, root(s.second_hat + s.number(s.epsilon) ** 2))
            ),
            "the root is at least epsilon": _step(direction=lambda s: divide(s.first_hat, np.maximum(root(s.second_hat), s.epsilon))),
            "there is no epsilon": _step(direction=lambda s: divide(s.first_hat, root(s.second_hat))),
        },
        torch="update = m_hat / (v_hat.sqrt() + epsilon)",
        tf="update = m_hat / (tf.sqrt(v_hat) + epsilon)",
        jax="optax.scale_by_adam(b1, b2, eps=epsilon, eps_root=0.0)  # eps_root is under the root",
        evidence="keras-radam#29, Flux.jl#448, d2l-zh#502",
        replaces=_step(direction=lambda s: divide(s.first_hat, root(s.second_hat + s.epsilon))),
    ),
    Defect(
        id="OPT8",
        title="the rate does not fall after the warm-up",
        what="`d^-1/2 min(w^-1/2, n w^-3/2)`: constant from the end of the warm-up, which is a stretch of n = w and no more.",
        shows="All is right until the warm-up ends. A step after it shows it.",
        variants={
            "the rate goes on rising after the warm-up": _rate(lambda n, d, w: d**-0.5 * n * w**-1.5),
            "the rate falls with 1 / n after the warm-up": _rate(lambda n, d, w: d**-0.5 * np.minimum(w**0.5 / n, n * w**-1.5)),
            "the rate falls with 1 / n^2 after the warm-up": _rate(lambda n, d, w: d**-0.5 * np.minimum(w**1.5 / n**2, n * w**-1.5)),
            "the rate falls with the steps since the warm-up": _rate(
                lambda n, d, w: d**-0.5 * np.where(n > w, np.maximum(n - w, 1) ** -0.5, n * w**-1.5)
            ),
        },
        torch="LambdaLR(optimizer, lambda count: width**-0.5 * min((count + 1) ** -0.5, (count + 1) * warmup**-1.5))",
        tf="width**-0.5 * tf.minimum(step**-0.5, step * warmup**-1.5)",
        jax="width**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)",
        evidence="derived, not reported",
        replaces=_rate(lambda n, d, w: d**-0.5 * np.minimum(w**-0.5, n * w**-1.5)),
    ),
)
