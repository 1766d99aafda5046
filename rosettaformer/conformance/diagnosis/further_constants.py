"""Constants of training: rows of what `constants` fits, which say what is a number there and what it does."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..catalogue.combinators import on_arguments, on_call, on_result
from ..catalogue.loss_settings import BOTH
from ..catalogue.schedule_settings import Rate, other_rate

__all__ = ["FURTHER"]

Altered = Callable[[float], Mapping[str, Callable]]


def _rate(rate: Callable[[float], Rate]) -> Altered:
    return lambda c: {"schedule.noam": other_rate(rate(c))}


def _scaled(place: str, argument: str) -> Altered:
    """An argument that is multiplied."""
    return lambda c: {place: on_arguments(**{argument: lambda value: value * c})}


def _given(place: str, argument: str) -> Altered:
    """An argument that is a number, whatever is given."""
    return lambda c: {place: on_arguments(**{argument: c})}


ADAM, CLIP = "optimizer.adam", "optimizer.clip_global_norm"
# id, component, title, where the fit begins, what the reference has there, and the functions that it replaces
FURTHER: tuple[tuple[Any, ...], ...] = (
    ("rate.factor", "noam", "the rate is multiplied by", 1.0, "the rate as it is",
     lambda c: {"schedule.noam": on_result(lambda rate: (rate * c).astype(rate.dtype))}),
    ("rate.power", "noam", "after the warm-up the rate is that of its end times n / warmup to the power of", -0.5, "the power -1/2",
     _rate(lambda c: lambda n, d, w: d**-0.5 * np.where(n > w, w**-0.5 * (n / w) ** c, n * w**-1.5))),
    ("rate.fall", "noam", "after the warm-up the rate falls in a line, by each step's share", 0.0, "n^-1/2 after the warm-up",
     _rate(lambda c: lambda n, d, w: d**-0.5 * np.where(n > w, w**-0.5 * (1 - c * (n - w)), n * w**-1.5))),
    ("rate.offset", "noam", "steps are counted with an offset of", 0.0, "steps counted from 1",
     _rate(lambda c: lambda n, d, w: d**-0.5 * np.minimum((n + c) ** -0.5, (n + c) * w**-1.5))),
    ("adam.rate", "adam", "the update is, besides the rate, multiplied by", 1.0, "the rate as it is", _scaled(ADAM, "learning_rate")),
    ("adam.decay", "adam", "the weight decay is multiplied by", 1.0, "the weight decay as it is", _scaled(ADAM, "weight_decay")),
    ("adam.beta_1", "adam", "beta_1 is", 0.9, "the beta_1 that is given", _given(ADAM, "beta_1")),
    ("adam.epsilon", "adam", "Adam's epsilon is", 1e-8, "the epsilon that is given", _given(ADAM, "epsilon"), True),
    ("clip.limit", "clip_global_norm", "the limit is multiplied by", 1.0, "the limit that is given", _scaled(CLIP, "limit")),
    ("loss.factor", "cross_entropy", "the loss is multiplied by", 1.0, "the loss as it is",
     lambda c: dict.fromkeys(BOTH, on_result(lambda loss: _multiplied(loss, c)))),
    ("loss.smoothing", "cross_entropy", "the smoothing is multiplied by", 1.0, "the smoothing that is given",
     lambda c: dict.fromkeys(BOTH, on_call(lambda smoothing, **others: {"smoothing": min(max(smoothing * c, 0.0), 1.0)}))),
)  # fmt: skip


def _multiplied(loss: Any, c: float) -> Any:
    """A loss, or its gradient."""
    return {name: _multiplied(one, c) for name, one in loss.items()} if isinstance(loss, dict) else (loss * c).astype(loss.dtype)
