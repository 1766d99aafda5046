"""How a model is trained: every choice of the loss, the schedule and the optimiser."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .config import LARGEST, is_integer, is_number
from .suggestions import LONGEST_NAME, refuse_unknown

__all__ = ["PAPER", "Recipe"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The choices of a training run. As in `TransformerConfig`, no field has a default.

    Raises ValueError naming every field that is out of range, with what is required and what came.
    """

    smoothing: float  # of the labels (SMOOTH)
    warmup: int  # steps until the learning rate is largest (NOAM)
    beta_1: float  # decay of the first moment (ADAM)
    beta_2: float  # decay of the second moment
    epsilon: float  # added to the root of the second moment
    weight_decay: float  # decoupled, of kernels and tables
    clip_norm: float | None  # the largest global norm of the gradients; None: any
    microbatches: int  # parts of a batch whose gradients are added up before the update

    def __post_init__(self) -> None:
        if problems := [*self._problems()]:
            raise ValueError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        for name, (good, wanted) in _RANGES.items():
            if not good(value := getattr(self, name)):
                yield f"{name} must be {wanted}; got {value!r:.{LONGEST_NAME}}"
            elif is_integer(value) and value > LARGEST:
                yield f"{name} must be at most {LARGEST}; got {value!r:.{LONGEST_NAME}}"

    def replace(self, **changes: Any) -> "Recipe":
        """A copy with some fields changed; raises ValueError on unknown fields and on values out of range."""
        refuse_unknown("recipe field", changes, _RANGES)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, as JSON can hold them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Recipe":
        """The recipe of `to_dict`'s mapping; raises ValueError naming every missing and unknown field."""
        refuse_unknown("recipe field", fields, _RANGES)
        if missing := [name for name in _RANGES if name not in fields]:
            raise ValueError(f"a recipe needs every field; missing {', '.join(missing)}")
        return cls(**fields)


def _count(value: Any) -> bool:
    return is_integer(value) and value >= 1


# field -> (what a value must satisfy, how the message says it)
_RANGES = {
    "smoothing": (lambda value: is_number(value) and 0 <= value < 1, "at least 0 and less than 1"),
    "warmup": (_count, "an integer of at least 1"),
    "beta_1": (lambda value: is_number(value) and 0 <= value < 1, "at least 0 and less than 1"),
    "beta_2": (lambda value: is_number(value) and 0 <= value < 1, "at least 0 and less than 1"),
    "epsilon": (lambda value: is_number(value) and value > 0, "greater than 0"),
    "weight_decay": (lambda value: is_number(value) and value >= 0, "at least 0"),
    "clip_norm": (lambda value: value is None or (is_number(value) and value > 0), "greater than 0, or None"),
    "microbatches": (_count, "an integer of at least 1"),
}


# Vaswani et al. 2017, sections 5.3 and 5.4.
PAPER = Recipe(smoothing=0.1, warmup=4000, beta_1=0.9, beta_2=0.98, epsilon=1e-9, weight_decay=0.0, clip_norm=None, microbatches=1)
