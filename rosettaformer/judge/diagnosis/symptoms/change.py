"""Changes of one value, of the output or of the input of one of the last steps, the numbers that it may be multiplied by,
and what a change means: a residual, a sub-layer, a norm, a bias left out or added twice.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...case import Case
from .answered import Answered
from .run_values import Step, Value

PLAIN = {"-1": -1.0, "2": 2.0, "1/2": 0.5, "-2": -2.0, "3": 3.0, "4": 4.0, "sqrt(2)": 2**0.5, "1/sqrt(2)": 0.5**0.5}


def named(case: Case) -> dict[str, float]:
    """Plain numbers, the sizes of the config, their roots and reciprocals, and the lengths of the inputs; no number that is 1."""
    config = case.config
    sizes = {
        "key_size": config.key_size, "model_width": config.model_width, "heads": config.heads, "value_size": config.value_size,
        "key_value_heads": config.key_value_heads, "heads * key_size": config.heads * config.key_size,
        "feed_forward_width": config.feed_forward_width, "encoder_layers": config.encoder_layers, "decoder_layers": config.decoder_layers,
        **_lengths(case),
    }  # fmt: skip
    found = dict(PLAIN)
    for name, size in sizes.items():
        of = f"({name})" if " " in name else name
        found |= {f"sqrt({name})": math.sqrt(size), name: float(size)}
        if size:
            found |= {f"1/sqrt({name})": 1 / math.sqrt(size), f"1/{of}": 1 / size}
            found |= {f"(1 - 1/sqrt({name}))": 1 - 1 / math.sqrt(size), f"(sqrt({name}) - 1)": math.sqrt(size) - 1}
    found |= {f"({name} - 1)": float(sizes[name] - 1) for name in ("heads", "encoder_layers", "decoder_layers")}
    for name, size in (
        ("model_width", config.model_width),
        ("value_size", config.value_size),
        ("heads * key_size", sizes["heads * key_size"]),
    ):
        of = f"({name})" if " " in name else name
        found[f"sqrt(key_size / {of})"] = math.sqrt(config.key_size / size)
    if 0 < config.dropout_rate < 1:
        found |= {"1 - dropout_rate": 1 - config.dropout_rate, "1/(1 - dropout_rate)": 1 / (1 - config.dropout_rate)}
    return {name: number for name, number in found.items() if number not in (0.0, 1.0)}


def _lengths(case: Case) -> dict[str, int]:
    """The lengths of batch and sequences."""
    for name, value in case.inputs.items():
        if isinstance(value, np.ndarray) and value.ndim >= 2 and name.rpartition("_")[2] in ("btd", "bsd", "bthk", "source", "target"):
            return {"the batch size": value.shape[0], "the sequence length": value.shape[1]}
    return {}


SLACK = {8: 1e-11, 4: 1e-5, 2: 0.03}  # by the dtype's bytes
Alter = Callable[[Answered, np.ndarray], np.ndarray | None]  # of a case and the value to be altered; None where there is no such value


@dataclass(frozen=True)
class Change:
    """Another value in place of one. words: the other value, with {} for the one. meaning: what the change means, if that is known."""

    kind: str
    words: str
    specificity: int
    alter: Alter
    meaning: str = ""


def own(function: Callable[[np.ndarray], np.ndarray]) -> Alter:
    """A change by a function of the value."""
    return lambda answered, given: function(given)


def slack(answered: Answered) -> float:
    """The relative error of a number that was computed from an answer."""
    return SLACK[answered.expectation.dtype.itemsize]


def factor_words(answered: Answered, factor: float) -> list[str]:
    """The words for a number: the sizes of the config that it may be, plain numbers first, or its digits; empty for 1."""
    if abs(factor - 1) < slack(answered):
        return [""]
    numbers = named(answered.case).items()
    return [name for name, number in numbers if abs(factor - number) < slack(answered) * abs(number)] or [f"{factor:.15g}"]


def number(answered: Answered, text: str) -> float | None:
    """The number that the words mean on a case; None if the case has no number of that name."""
    if not text:
        return 1.0
    if text in (numbers := named(answered.case)):
        return numbers[text]
    try:
        return float(text)
    except ValueError:
        return None


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
