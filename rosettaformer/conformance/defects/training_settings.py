"""Settings of the training on which ports differ: how a loss is averaged, how gradients are clipped."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy.parameters import flatten, nest

from . import Defect
from .loss import both, lost_mass

__all__ = ["training_settings"]

Tree = Mapping[str, Any]


def training_settings() -> Iterator[Defect]:
    """Each as an alteration of the reference, as in `settings`."""
    yield _of("smoothing=mass lost", "cross_entropy", "the smoothed label is 1 - smoothing, without its share of smoothing / V",
              "let the label keep smoothing / V of its own", both(lost_mass))  # fmt: skip
    yield _of("loss=over all positions", "cross_entropy", "padding adds no loss and counts in the mean",
              "divide by the number of real labels", both(_over_all_positions))  # fmt: skip
    yield _of("loss=sum", "cross_entropy", "the loss is a sum", "divide by the number of real labels", both(_sum))
    yield _of("clip=norm + 1e-6", "clip_global_norm", "1e-6 is added to the norm", "divide by the norm itself, where it is not 0",
              {"optimizer.clip_global_norm": _padded_norm})  # fmt: skip
    yield _of("clip=each tensor", "clip_global_norm", "every tensor is clipped by its own norm", "take one norm of all tensors",
              {"optimizer.clip_global_norm": _each_tensor})  # fmt: skip


def _of(id_: str, component: str, title: str, fix: str, replaces: Mapping[str, Callable]) -> Defect:
    fixes = dict.fromkeys(("torch", "tf", "jax"), fix)
    return Defect(id=id_, title=title, component=component, what=title, shows="", fix=fixes, evidence="", replaces=replaces)


def _over_all_positions(
    original: Callable, logits_btv: Any, label_bt: Any, mask_bt: Any = None, smoothing: float = 0.0, total: Any = None, **options: Any
) -> Any:
    return original(logits_btv, label_bt, mask_bt, smoothing, max(label_bt.size, 1), **options)


def _sum(
    original: Callable, logits_btv: Any, label_bt: Any, mask_bt: Any = None, smoothing: float = 0.0, total: Any = None, **options: Any
) -> Any:
    return original(logits_btv, label_bt, mask_bt, smoothing, 1, **options)


def _padded_norm(original: Callable, gradients: Tree, limit: float) -> Any:
    norm = math.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in flatten(gradients).values()))
    return original(gradients, limit * norm / (norm + 1e-6)) if norm else original(gradients, limit)


def _each_tensor(original: Callable, gradients: Tree, limit: float) -> Any:
    return nest({name: original({"own": g}, limit)["own"] for name, g in flatten(gradients).items()})
