"""The parameter update: Adam with decoupled weight decay, and gradient clipping (ADAM)."""

from typing import Any

import jax
import optax
from jax.tree_util import KeyPath

__all__ = ["adam", "clip_global_norm", "decay_mask"]


def adam(
    learning_rate: optax.ScalarOrSchedule,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float = 0.0,
) -> optax.GradientTransformationExtraArgs:
    """`p = p - rate (m_hat / (sqrt(v_hat) + epsilon) + decay p)`: an explicit `optax.adamw`.

    optax adds `epsilon` to the corrected root, as ADAM requires; its `eps_root` goes inside the
    root. `optax.tree.get` and `optax.tree.set` access the step count, first moments `mu` and second
    moments `nu` of its state.
    """
    adamw = optax.adamw(
        learning_rate,
        beta_1,
        beta_2,
        epsilon,
        eps_root=0.0,
        weight_decay=weight_decay,
        mask=decay_mask,
        nesterov=False,
    )

    def update(
        gradients: optax.Updates,
        state: optax.OptState,
        parameters: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        # For `1 - beta^n`: in float32 the first values keep few digits.
        with jax.enable_x64(True):
            return adamw.update(gradients, state, parameters, **extra)

    return optax.GradientTransformationExtraArgs(adamw.init, update)


def clip_global_norm(gradients: optax.Updates, limit: float) -> optax.Updates:
    """`g = g min(1, limit / norm)`, `norm = sqrt(sum g^2)` over all tensors of a tree."""
    if not limit > 0:
        raise ValueError(f"limit must be greater than 0; got {limit}")
    clip = optax.clip_by_global_norm(limit)
    return clip.update(gradients, clip.init(gradients))[0]


def decay_mask(parameters: optax.Params) -> optax.Params:
    """Returns True for kernels and tables, in the structure of an NNX state or of mappings."""

    def decays(path: KeyPath, _: jax.Array) -> bool:
        # In a state, the last part of a path is a variable's value, and the part before it its
        # name.
        return any(getattr(part, "key", None) in ("kernel", "table") for part in path[-2:])

    return jax.tree.map_with_path(decays, parameters)
