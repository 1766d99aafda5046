"""The parameter update: Adam with decoupled weight decay, and gradient clipping (ADAM)."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from reference_numpy.parameters import flatten, nest

from . import precision
from .framework import scaled

__all__ = ["adam", "clip_global_norm", "decay_mask"]

# tensors by canonical name, or nested by its parts
Tree: TypeAlias = Mapping[str, "Tensor | Tree"]


def adam(
    parameters: Tree,
    first_moment: Tree,
    second_moment: Tree,
    steps: int,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float = 0.0,
) -> torch.optim.AdamW:
    """Returns a `torch.optim.AdamW` with these moments after `steps` steps; it updates in place.

    `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
    `p = p - rate (m_hat / (sqrt(v_hat) + epsilon) + decay p)`. The learning rate is 0 until set in
    its two groups; only the first decays (`decay_mask`). One fused kernel updates all tensors.
    """
    flat, first, second = flatten(parameters), flatten(first_moment), flatten(second_moment)
    decays = flatten(decay_mask(parameters))
    groups = []
    for decay in (True, False):
        own = [flat[name] for name in flat if decays[name] is decay]
        groups.append({"params": own, "weight_decay": weight_decay if decay else 0.0})
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=epsilon, fused=True)
    for name, tensor in flat.items():
        count = torch.tensor(float(steps), dtype=torch.float32, device=tensor.device)
        optimizer.state[tensor].update(step=count, exp_avg=first[name], exp_avg_sq=second[name])
    return optimizer


def clip_global_norm(gradients: Tree, limit: float) -> Tree:
    """`g = g min(1, limit / norm)`, `norm = sqrt(sum g^2)` over all tensors; exact below the limit.

    `torch.nn.utils.clip_grad_norm_` adds 1e-6 to the norm.
    """
    if not limit > 0:
        raise ValueError(f"limit must be greater than 0; got {limit}")
    flat = flatten(gradients)
    norm = torch.nn.utils.get_total_norm(
        [precision.upcast_half(gradient) for gradient in flat.values()]
    )
    factor = (limit / norm).clamp(max=1)
    return nest(dict(zip(flat, scaled(flat.values(), factor), strict=True)))


def decay_mask(parameters: Tree) -> dict[str, Any]:
    """Returns True for kernels and tables by canonical name; torch's norms have a `weight` too."""
    return nest(
        {name: name.rpartition(".")[2] in ("kernel", "table") for name in flatten(parameters)}
    )
