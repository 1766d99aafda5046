"""Defects of the update and of the learning rate."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import optimizer
from reference_numpy.parameters import flatten, nest

from .defect import Defect, on_arguments, on_call, on_result

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
)
