"""Defects of dropout."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .defect import Defect, on_arguments

__all__ = ["DEFECTS"]


def drawn(shape: tuple[int, ...], rate: float) -> np.ndarray:
    """A fresh random keep mask, another one at every call."""
    return np.random.default_rng().random(shape) >= rate


def _always_active(original: Callable, x: np.ndarray, keep: Any, rate: float) -> np.ndarray:
    return original(x, drawn(x.shape, rate) if keep is None else keep, rate)


DEFECTS = (
    Defect(
        id="DRP1",
        title="dropout is active in evaluation",
        what="`y = x / (1 - rate)` or 0 at random, also in evaluation: a layer built in the forward pass is always in training mode.",
        shows="Two evaluations of the same input differ. Evaluation with a rate above 0 shows it.",
        torch="self.dropout = nn.Dropout(rate)  # in __init__, so that .eval() reaches it; or F.dropout(x, rate, self.training)",
        tf="x = self.dropout(x, training=training)  # a layer of __init__; never training=True",
        jax="x = self.dropout(x, deterministic=not train)",
        evidence="semillero, pytorch#26338",
        replaces={"dropout.dropout": _always_active},
        random=True,
    ),
    Defect(
        id="DRP3",
        title="dropout stays off in training",
        what="`y = x` although training asks for dropout: an evaluation set the rate to 0 and nothing set it back.",
        shows="Training overfits; evaluation is right. A given keep mask shows it.",
        torch="rate = self.rate if self.training else 0.0  # a local name; self.rate stays as it is",
        tf="x = self.dropout(x, training=training)  # never self.dropout.rate = 0",
        jax="x = self.dropout(x, deterministic=not train)  # a fresh argument of every call",
        evidence="Megatron-LM#411",
        replaces={"dropout.dropout": on_arguments(keep=None)},
    ),
    Defect(
        id="DRP4",
        title="kept values are not divided by 1 - rate",
        what="`y = x` where kept, instead of `x / (1 - rate)`: evaluation then expects other magnitudes than training.",
        shows="Kept values are too small by 1 - rate. A given keep mask shows it.",
        torch="y = torch.where(keep, x / (1 - rate), 0)  # as F.dropout does",
        tf="y = tf.where(keep, x / (1 - rate), 0)  # as tf.nn.dropout does",
        jax="y = jnp.where(keep, x / (1 - rate), 0)  # as nn.Dropout does",
        evidence="apex#816",
        replaces={"dropout.dropout": on_arguments(rate=0.0)},
    ),
)
