"""Whether a port gives the same answer to the same question: evaluated again, in another batch, with longer padding."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..case import Case
from ..catalogue import Alteration
from ..reference import trace
from ..reference.tolerance import Expectation
from ..status import Kind
from . import altered
from .altered import Combination, Outputs
from .hypotheses import Hypotheses
from .search import Search

RANDOM = "two evaluations of the same input differ"  # how a worker begins to say so
MODELS = ("transformer", "pool", "classify", "masked_language_logits")
OF_ROWS = ("output", "score_bw", "log_p_bn")  # outputs whose rows do not depend on each other
LONGER = 2  # columns of padding that are added
DRAWS = 4  # answers that show how far random ones lie apart

Ask = Callable[[Iterable[Case]], list[tuple[Case, str, Any]]]


def twice(cases: Iterable[Case], count: int | None = None) -> list[Case]:
    """The cases, of which the first `count`, or all, are evaluated two times."""
    return [dataclasses.replace(case, twice=case.twice or count is None or index < count) for index, case in enumerate(cases)]


def made_random(hypotheses: Hypotheses, indices: Iterable[int]) -> list[int]:
    """Those of the probes to which the reference gives another answer each time with some defect that draws at random."""
    return [index for index in indices if any(_drawn(defect, hypotheses, index) > 0 for defect in hypotheses.random)]


def random_part(case: Case, subject: Any) -> str:
    """The path of the first part of a model whose outputs differ although two runs give it the same; empty where none is shown."""
    kind, runs = subject.worker.call("trace", case, [None, None], limit=subject.limit)
    if kind != Kind.OUTPUTS:
        return ""
    first, second = runs
    for path in filter(None, trace.record(case.at("float64"))):
        if path in first and path in second and _same(first[path].get("inputs"), second[path].get("inputs")):
            outputs = [run[path].get("output") for run in runs]
            if all(isinstance(output, np.ndarray) for output in outputs) and not _same(*([output] for output in outputs)):
                return str(path)
    return ""


def _same(first: Any, second: Any) -> bool:
    return first is not None and second is not None and len(first) == len(second) and all(map(np.array_equal, first, second))


def random_defects(hypotheses: Hypotheses, answers: Mapping[int, Sequence[Outputs]]) -> list[Combination]:
    """The defects that make exactly these probes random; none where a port's answers differ by no more than rounding.

    answers: of the port, DRAWS to every probe to which two of its answers were seen to differ.
    """
    if _rounds(hypotheses, answers):
        return []
    found: dict[str, Combination] = {}
    for defect in hypotheses.random:
        if defect.id not in found and _spreads(defect, hypotheses).keys() == answers.keys():
            found[defect.id] = (defect,)
    return list(found.values())


def _rounds(hypotheses: Hypotheses, answers: Mapping[int, Sequence[Outputs]]) -> bool:
    """Whether a port's answers to some probe differ by no more than rounding."""
    return any(_spread(given) <= 2 * max(one.bound for one in hypotheses.clean[index].values()) for index, given in answers.items())


def dropping(hypotheses: Hypotheses, answers: Mapping[int, Sequence[Outputs]]) -> bool:
    """Whether every probe that is random, by more than rounding, has a rate of dropout that is not 0, and another probe has none."""
    configs = [dataclasses.asdict(probe.config) for probe in hypotheses.probes]
    drops = [any(value for name, value in config.items() if name.endswith("dropout_rate")) for config in configs]
    return bool(answers) and not all(drops) and all(drops[index] for index in answers) and not _rounds(hypotheses, answers)


def _spreads(defect: Alteration, hypotheses: Hypotheses) -> dict[int, float]:
    """By how much the answers of the reference with this defect differ, for every probe to which they do."""
    spreads = {index: _drawn(defect, hypotheses, index) for index in range(len(hypotheses.probes))}
    return {index: spread for index, spread in spreads.items() if spread > 0}


def _drawn(defect: Alteration, hypotheses: Hypotheses, index: int) -> float:
    """By how much the answers of the reference with this defect to a probe differ."""
    draws = [altered.answer((defect,), hypotheses.probes[index]) for _ in range(DRAWS)]
    return _spread([answer for answer in draws if answer])


def _spread(answers: Sequence[Outputs]) -> float:
    """The largest difference between two of the answers."""
    pairs = itertools.combinations(answers, 2)
    return max((_distance(first[name], second[name]) for first, second in pairs for name in first.keys() & second.keys()), default=0.0)


def broken_invariances(search: Search, ask: Ask) -> list[str]:
    """What the port's answers depend on and should not, in words. ask: runs further cases on the port."""
    found = {}
    for index in search.failing:
        case, answer = search.hypotheses.probes[index], search.answers[index]
        name = next((name for name in OF_ROWS if name in answer), "")
        output, clean = answer.get(name), search.clean[index].get(name)
        if clean is None or not isinstance(output, np.ndarray) or output.shape != clean.reference.shape or not output.ndim:
            continue
        for what, changed, part in _variants(case):
            if what not in found and any(_differs(clean, part(output), part(other)) for other in _others(ask, case, changed, name)):
                found[what] = f"{what} ({case.id})"
    return list(found.values())


def remembered(search: Search, first: Callable[[Case], Outputs | None]) -> str:
    """What is said of a port whose answer depends on what it was asked before; empty where it does not. first: its answer where it is asked
    nothing before."""
    index = search.failing[-1]  # of those that fail the one before which the most was asked
    case, answer, clean = search.hypotheses.probes[index], search.answers[index], search.clean[index]
    fresh = first(case)
    arrays = [*answer.values(), *(fresh or {}).values()]
    if fresh is None or fresh.keys() != answer.keys() or not all(isinstance(array, np.ndarray) for array in arrays):
        return ""
    if not any(_differs(one, answer[name], fresh[name]) for name, one in clean.items() if name in answer):
        return ""
    right = all(name in fresh and _distance(fresh[name], one.reference) <= one.bound for name, one in clean.items())
    return f"your output depends on the calls before it: {case.id}, asked first, gives {'the right' if right else 'another'} answer"


def _others(ask: Ask, case: Case, changed: Case, name: str) -> list[np.ndarray]:
    """The output for the changed case, of a port that answers the case itself twice alike."""
    replies = ask([dataclasses.replace(case, twice=True), changed])
    return [replies[1][2][name]] if [kind for _, kind, _ in replies] == [Kind.OUTPUTS, Kind.OUTPUTS] else []


def _differs(clean: Expectation, first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two outputs differ by more than the rounding of both, in proportion to their size; places of NaN say nothing of why."""
    if first.shape != second.shape:
        return False
    largest = max(float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) for array in (clean.reference, first, second))
    size = float(np.abs(clean.reference[np.isfinite(clean.reference)]).max(initial=0.0))
    return _distance(first, second) > 2 * clean.bound * (largest / size if size else 1.0)


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    """The largest difference of numbers that are finite in both."""
    if first.shape != second.shape:
        return np.inf
    finite = np.isfinite(first) & np.isfinite(second)
    return float(np.abs(first[finite].astype(np.float64) - second[finite].astype(np.float64)).max(initial=0.0))


def _variants(case: Case) -> Iterator[tuple[str, Case, Callable[[np.ndarray], np.ndarray]]]:
    """What the port's answer would depend on, the changed case, and the part of both outputs that must be equal."""
    batch = max((value.shape[0] for value in case.inputs.values() if isinstance(value, np.ndarray) and value.ndim), default=0)
    if batch > 1:
        last = {name: value[-1:] if _batched(value, batch) else value for name, value in case.inputs.items()}
        yield "a row's output depends on the other rows of its batch", dataclasses.replace(case, inputs=last), lambda output: output[-1:]
    padding, tokens = case.config.padding_id, [name for name in ("source", "target") if case.inputs.get(name) is not None]
    kept = any(name.startswith("keep") for name in case.inputs)  # masks of dropout have the length of the padding
    if case.component in MODELS and padding is not None and not kept and all(_ids(case.inputs[name]) for name in tokens):
        width = case.inputs[tokens[-1]].shape[1]
        given = {name: value for name, value in case.inputs.items() if isinstance(value, np.ndarray)}  # the others are options
        fillings = {name: padding if name in tokens else 0 for name in given}  # of a mask 0 is False
        longer = {name: np.pad(value, ((0, 0), (0, LONGER)), constant_values=fillings[name]) for name, value in given.items()}
        changed = dataclasses.replace(case, inputs=dict(case.inputs) | longer)
        yield "the output depends on how long the padding is", changed, lambda output: output[:, :width] if output.ndim > 2 else output


def _batched(value: Any, batch: int) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 1 and value.shape[0] == batch


def _ids(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind in "iu"
