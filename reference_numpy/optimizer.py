"""The parameter update: Adam with decoupled weight decay, and gradient clipping (ADAM)."""

import math

import numpy as np

from . import arithmetic
from .arrays import Array, Tree
from .parameters import flatten, nest

__all__ = ["adam", "clip_global_norm", "decay_mask"]


def adam(
    parameters: Tree,
    gradients: Tree,
    first_moment: Tree,
    second_moment: Tree,
    step: int,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float = 0.0,
) -> dict[str, Tree]:
    """`p = p - rate (m_hat / (sqrt(v_hat) + epsilon) + decay p)`: one step.

    `m = b1 m + (1 - b1) g`, `m_hat = m / (1 - b1^n)` and `v = b2 v + (1 - b2) g^2`,
    `v_hat = v / (1 - b2^n)`, where n is the step, counted from 1. The decay is decoupled (it
    bypasses the moments) and applies where `decay_mask` is True. Returns parameters, first_moment
    and second_moment in the dtype of the parameters. Raises ValueError if step is less than 1.
    Source: Kingma & Ba 2015, algorithm 1; decay: Loshchilov & Hutter 2019, algorithm 2.
    """
    if step < 1:
        raise ValueError(f"step must be at least 1; got {step}")
    decays = flatten(decay_mask(parameters))
    flat = [flatten(tree) for tree in (parameters, gradients, first_moment, second_moment)]
    names = "parameters", "first_moment", "second_moment"
    updated = {name: dict[str, Array]() for name in names}
    for name in flat[0]:
        p, g, m, v = (tree[name] for tree in flat)
        number = p.dtype.type
        m = number(beta_1) * m + number(1 - beta_1) * g
        v = number(beta_2) * v + number(1 - beta_2) * (g * g)
        m_hat = arithmetic.divide(m, number(1 - beta_1**step))
        v_hat = arithmetic.divide(v, number(1 - beta_2**step))
        update = arithmetic.divide(m_hat, np.sqrt(v_hat) + number(epsilon))
        if weight_decay and decays[name]:
            update = update + number(weight_decay) * p
        updated["parameters"][name] = p - number(learning_rate) * update
        updated["first_moment"][name], updated["second_moment"][name] = m, v
    return {name: nest(tree) for name, tree in updated.items()}


def clip_global_norm(gradients: Tree, limit: float) -> Tree:
    """`g = g min(1, limit / norm)`, `norm = sqrt(sum g^2)` over all tensors.

    Keeps the direction and limits the length. A tied tensor counts once. Raises ValueError unless
    limit is greater than 0. Source: Pascanu et al. 2013, algorithm 1.
    """
    if not limit > 0:
        raise ValueError(f"limit must be greater than 0; got {limit}")
    flat = flatten(gradients)
    squares = [arithmetic.sum(np.square(g.reshape(-1), dtype=np.float64), 0) for g in flat.values()]
    norm = math.sqrt(float(arithmetic.sum(np.concatenate(squares), 0)[0]))
    factor = min(1.0, limit / norm) if norm else 1.0
    return nest({name: g * g.dtype.type(factor) for name, g in flat.items()})


def decay_mask(parameters: Tree) -> Tree:
    """Returns True for kernels and tables, which decay; False for biases, scales and offsets."""
    leaves = {name: name.rpartition(".")[2] for name in flatten(parameters)}
    return nest({name: leaf in ("kernel", "table") for name, leaf in leaves.items()})
