"""A training recipe: the choices of loss, schedule and optimizer."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from .fields import POSITIVE, POSITIVE_OR_NONE, SHARE, Fields, at_least, integer

__all__ = ["PAPER", "Recipe"]

_Share = Annotated[float, SHARE]
_Count = Annotated[int, integer(1)]
_Limit = Annotated[float | None, POSITIVE_OR_NONE]


@dataclass(frozen=True, kw_only=True)
class Recipe(Fields):
    """The choices of a training run. As in `TransformerConfig`, no field has a default.

    Raises ValueError naming every field that is out of range, with the requirement and the value.
    """

    KIND: ClassVar[str] = "recipe"

    smoothing: _Share  # label smoothing (SMOOTH)
    warmup: _Count  # steps until the learning rate peaks (NOAM)
    beta_1: _Share  # decay of the first moment (ADAM)
    beta_2: _Share  # decay of the second moment
    epsilon: Annotated[float, POSITIVE]  # added to the root of the second moment
    weight_decay: Annotated[float, at_least(0)]  # decoupled, for kernels and tables
    clip_norm: _Limit  # limit of the global gradient norm; None: no clipping
    microbatches: _Count  # parts of a batch whose gradients are summed before the update


# Vaswani et al. 2017, sections 5.3 and 5.4.
PAPER = Recipe(
    smoothing=0.1,
    warmup=4000,
    beta_1=0.9,
    beta_2=0.98,
    epsilon=1e-9,
    weight_decay=0.0,
    clip_norm=None,
    microbatches=1,
)
