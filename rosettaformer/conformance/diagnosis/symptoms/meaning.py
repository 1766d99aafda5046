"""The meaning of a change that the reference's values show: a residual, a sub-layer, a norm, a bias left out or added twice."""

import re

import numpy as np

from .answered import Answered
from .steps import Step
from .values import Value

__all__ = ["of_equality", "of_sum"]

ADDED = {"plus": "is added twice", "minus": "is left out"}


def of_sum(step: Step, value: Value, sign: str) -> str:
    """The meaning of a sum: a value plus or minus another one that the reference adds once."""
    if value.role == "parameter":
        return f"it {ADDED[sign]}" if value.words.endswith(("bias`", "offset`")) else ""
    if _is_output(step, value):
        return f"the output of `{step.sublayer}` {ADDED[sign]}"
    if step.sublayer and value.words == f"the residual of `{step.sublayer}`":
        return f"it {ADDED[sign]}"
    return ""


def _is_output(step: Step, value: Value) -> bool:
    """Whether the value is the output of the sub-layer, before or after dropout, that the step's input has as a term."""
    site = f"{step.sublayer}_dropout"
    return bool(step.sublayer) and value.words in (
        f"the output of `{site}`",
        f"the `x` that `{site}` is given",
        f"the output of `{step.sublayer}`",
    )


def of_equality(answered: Answered, step: Step, value: Value) -> str:
    """The meaning of another value in place of one."""
    if _is_output(step, value):
        return f"the residual of `{step.sublayer}` is left out"
    if step.sublayer and value.words == f"the residual of `{step.sublayer}`":
        return f"`{step.sublayer}` is left out"
    if given := re.fullmatch(r"the `\w+` that `(.+)` is given", value.words):
        output = answered.run.named.get(f"the output of `{given[1]}`")
        if output is not None and np.array_equal(output, step.given):
            return f"`{given[1]}` is left out"
    return ""
