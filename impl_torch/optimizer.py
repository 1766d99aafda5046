"""The update of the parameters: Adam with decoupled weight decay, and the global norm of the gradients (ADAM)."""

from collections.abc import Mapping
from typing import Any

import torch

from reference_numpy.parameters import flatten, nest

from . import precision

__all__ = ["adam", "clip_global_norm", "decay_mask"]

Tree = Mapping[str, Any]  # tensors, nested by the parts of the canonical names


def adam(
    parameters: Tree,
    first_moment: Tree,
    second_moment: Tree,
    steps: int,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float = 0.0,
) -> torch.optim.AdamW:
    """`torch.optim.AdamW` after so many steps with these moments, which its `step` updates in place, as it does the parameters.

    Its learning rate is 0 until one is written into its groups: one group decays and the other does not (`decay_mask`). One fused
    kernel updates all tensors.
    """
    flat, first, second = flatten(parameters), flatten(first_moment), flatten(second_moment)
    decays = flatten(decay_mask(parameters))
    groups = [
        {"params": [flat[name] for name in flat if decays[name] is decay], "weight_decay": weight_decay if decay else 0.0}
        for decay in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(beta_1, beta_2), eps=epsilon, fused=True)
    for name, tensor in flat.items():
        count = torch.tensor(float(steps), dtype=torch.float32, device=tensor.device)
        optimizer.state[tensor].update(step=count, exp_avg=first[name], exp_avg_sq=second[name])
    return optimizer


def clip_global_norm(gradients: Tree, limit: float) -> dict[str, Any]:
    """As `torch.nn.utils.clip_grad_norm_`, which adds 1e-6 to the norm: here a gradient of a norm within the limit keeps every bit."""
    if not limit > 0:
        raise ValueError(f"limit must be greater than 0; got {limit}")
    flat = flatten(gradients)
    norm = torch.nn.utils.get_total_norm([precision.widen(gradient) for gradient in flat.values()])
    factor = (limit / norm).clamp(max=1)
    return nest(dict(zip(flat, torch._foreach_mul(list(flat.values()), factor), strict=True)))


def decay_mask(parameters: Tree) -> dict[str, Any]:
    """By the canonical names, since a name of torch's such as `weight` says too little."""
    return nest({name: name.rpartition(".")[2] in ("kernel", "table") for name in flatten(parameters)})
