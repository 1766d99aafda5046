"""Rows of a table of times: one implementation of a timed task each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MODES = ("eager", "compiled")
Call = Callable[[], Any]  # a timed call, which returns when its result is ready
# precision -> maximum difference from the reference, relative to its largest logit: ten times above
# rounding, far below a wrong mask, position or weight
BOUNDS = {"float32": 1e-4, "tf32": 2e-2, "bfloat16": 1e-1, "int8": 1e-1}
# the same for the losses of the first training steps
LOSS_BOUNDS = {"float32": 1e-5, "tf32": 1e-3}


def named(result: Any) -> Mapping[str, np.ndarray]:
    """Returns the arrays of a result by name: `output`, or the best hypothesis of a search."""
    if not isinstance(result, Mapping):
        return {"output": np.asarray(result, np.float32)}
    found = {name: np.asarray(tensor) for name, tensor in result.items()}
    if "token_bwn" in found:
        return {"token_bn": found["token_bwn"][:, 0], "score_b": found["score_bw"][:, 0]}
    return found


@dataclass
class About:
    """Description of a row."""

    framework: str
    name: str = ""
    precision: str = "float32"
    peer: bool = False
    compiles: bool = False
    comparable: bool = True  # False for another architecture of the same sizes, which is only timed
    ceiling: bool = False  # only the matrix products
    skips: bool = False  # with skip_padding, rows at padding are zeros


@dataclass
class Row(About):
    """One implementation of a task.

    start: builds the model and returns the timed call. read: converts its result to the arrays that
    are compared with the reference, see `named`. check: returns the losses of the first training
    steps without dropout, which are compared instead of the random result of a training step.
    """

    start: Callable[[], Call] = field(kw_only=True)
    read: Callable[[Any], Mapping[str, np.ndarray]] = named
    check: Callable[[], np.ndarray] | None = None
