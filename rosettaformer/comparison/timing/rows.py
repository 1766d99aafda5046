"""A row of a table of times: one implementation of what is timed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MODES = ("eager", "compiled")
Call = Callable[[], Any]  # the timed call; returns when its result is ready
# precision -> largest difference from the reference, relative to the reference's largest logit. Rounding stays ten times below it;
# a wrong mask, position or weight is far above.
BOUNDS = {"float32": 1e-4, "tf32": 2e-2, "bfloat16": 1e-1, "int8": 1e-1}
# The same for the losses of the first training steps.
LOSS_BOUNDS = {"float32": 1e-5, "tf32": 1e-3}


def named(result: Any) -> Mapping[str, np.ndarray]:
    """Returns the arrays of a result by name: `output`, or those of a search (the best hypothesis of a beam search)."""
    if not isinstance(result, Mapping):
        return {"output": np.asarray(result, np.float32)}
    found = {name: np.asarray(tensor) for name, tensor in result.items()}
    if "token_bwn" in found:
        return {"token_bn": found["token_bwn"][:, 0], "score_b": found["score_bw"][:, 0]}
    return found


@dataclass
class About:
    """Describes a row."""

    framework: str
    name: str = ""
    precision: str = "float32"
    peer: bool = False
    compiles: bool = False
    comparable: bool = True  # another architecture of the same sizes: timed, not compared
    ceiling: bool = False  # the matrix products only
    skips: bool = False  # with skip_padding: its rows at padding are zeros


@dataclass
class Row(About):
    """One implementation of a task. start: builds the model, when the row is run, and returns the call that is timed.

    What is compared with the reference is the output of `read` on the call's result: arrays by name, see `named`. For a training step,
    which is random, it is the result of `check`: the losses of the first steps without dropout.
    """

    start: Callable[[], Call] = field(kw_only=True)
    read: Callable[[Any], Mapping[str, np.ndarray]] = named
    check: Callable[[], np.ndarray] | None = None
