"""Whether a port's output changes with the batch, with later tokens or padding, or with earlier calls."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...case import LAST, Case
from ...expectation.tolerance import Expectation
from ...status import Kind
from ..altered import Outputs
from ..words import depends_on_calls
from .distinguishing import Ask
from .evidence import Evidence, distance

MODELS = ("transformer", "pool", "classify", "masked_language_logits")
OF_ROWS = ("output", "score_bw", "log_p_bn")  # outputs whose rows do not depend on each other
LONGER = 2  # columns of padding added


def broken_invariances(evidence: Evidence, ask: Ask) -> list[str]:
    """Reports wrong dependencies of the port's outputs. ask: runs further cases on the port."""
    found = {}
    for index in evidence.failing:
        case, answer = evidence.probes[index], evidence.answers[index]
        name = next((name for name in OF_ROWS if name in answer), "")
        output, clean = answer.get(name), evidence.clean[index].get(name)
        if clean is None or not isinstance(output, np.ndarray) or output.shape != clean.reference.shape or not output.ndim:
            continue
        for what, changed, part in _variants(case):
            if what not in found and any(_differs(clean, part(output), part(other)) for other in _others(ask, case, changed, name)):
                found[what] = f"{what} ({case.id})"
    return list(found.values())


def remembered(evidence: Evidence, first: Callable[[Case], Outputs | None]) -> str:
    """Reports an output that depends on earlier calls. first: the output of a fresh process."""
    index = evidence.failing[-1]  # the failing case with the most calls before it
    case, answer, clean = evidence.probes[index], evidence.answers[index], evidence.clean[index]
    fresh = first(case)
    arrays = [*answer.values(), *(fresh or {}).values()]
    if fresh is None or fresh.keys() != answer.keys() or not all(isinstance(array, np.ndarray) for array in arrays):
        return ""
    if not any(_differs(one, answer[name], fresh[name]) for name, one in clean.items() if name in answer):
        return ""
    right = all(name in fresh and distance(fresh[name], one.reference) <= one.bound for name, one in clean.items())
    return depends_on_calls(case.id, right)


def _others(ask: Ask, case: Case, changed: Case, name: str) -> list[np.ndarray]:
    """The output for the changed case if the port gives equal outputs for the case itself."""
    replies = ask([dataclasses.replace(case, twice=True), changed])
    return [replies[1][2][name]] if [kind for _, kind, _ in replies] == [Kind.OUTPUTS, Kind.OUTPUTS] else []


def _differs(clean: Expectation, first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two outputs differ by more than rounding, relative to their size, ignoring NaN."""
    if first.shape != second.shape:
        return False
    largest = max(float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) for array in (clean.reference, first, second))
    size = float(np.abs(clean.reference[np.isfinite(clean.reference)]).max(initial=0.0))
    return distance(first, second) > 2 * clean.bound * (largest / size if size else 1.0)


def _variants(case: Case) -> Iterator[tuple[str, Case, Callable[[np.ndarray], np.ndarray]]]:
    """Changed cases, with the dependence they show and the part that must stay equal."""
    batch = max((value.shape[0] for value in case.inputs.values() if isinstance(value, np.ndarray) and value.ndim), default=0)
    if batch > 1:
        last = {name: value[-1:] if _batched(value, batch) else value for name, value in case.inputs.items()}
        yield "a row's output depends on the other rows of its batch", dataclasses.replace(case, inputs=last), lambda output: output[-1:]
    padding, tokens = case.config.padding_id, [name for name in ("source", "target") if case.inputs.get(name) is not None]
    kept = any(name.startswith("keep") for name in case.inputs)  # masks of dropout have the length of the padding
    lengthy = case.config.rotary_by_length or case.compared == LAST
    if case.component == "transformer" and tokens == ["target"] and not kept and not lengthy and case.inputs["target"].shape[1] > 1:
        half = case.inputs["target"].shape[1] // 2
        first = {name: value[:, :half] if isinstance(value, np.ndarray) else value for name, value in case.inputs.items()}
        yield "a token's output depends on later tokens", dataclasses.replace(case, inputs=first), lambda output: output[:, :half]
    if case.component in MODELS and padding is not None and not kept and all(_ids(case.inputs[name]) for name in tokens):
        width = case.inputs[tokens[-1]].shape[1]
        given = {name: value for name, value in case.inputs.items() if isinstance(value, np.ndarray)}  # without options
        fillings = {name: padding if name in tokens else 0 for name in given}  # 0 is False in a mask
        longer = {name: np.pad(value, ((0, 0), (0, LONGER)), constant_values=fillings[name]) for name, value in given.items()}
        changed = dataclasses.replace(case, inputs=dict(case.inputs) | longer)
        yield "the output depends on how long the padding is", changed, lambda output: output[:, :width] if output.ndim > 2 else output


def _batched(value: Any, batch: int) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 1 and value.shape[0] == batch


def _ids(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind in "iu"
