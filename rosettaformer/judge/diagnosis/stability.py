"""Whether a port gives the same answer to the same question: again, in another batch, with longer padding.
padding.

And one more case through its own module, which tells alterations apart that the suite's cases do not. A
case that the port was asked already is changed so that they differ by far more than what passes: its logits
are made large, its padding is taken away, its numbers are scaled. What the port answers leaves those that
answer the same.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..case import Case
from ..catalogue import Alteration
from ..expectation import trace
from ..expectation.components import FORWARD
from ..expectation.tolerance import Expectation
from ..status import Kind
from . import altered
from .altered import Combination, Outputs, reversed_rows, separates
from .hypotheses import Hypotheses
from .search import Search

BASES = 3  # cases that fail, and as many that do not, from which further ones are made
LARGE, SCALES = 1e5, (1e3, 1e-3)
LOGITS = ("query.kernel", "query.bias", "query_bthk", "logits")  # what the logits of an attention are proportional to

Ask = Callable[[Iterable[Case]], list[tuple[Case, str, Any]]]


def told_apart(found: list[Combination], search: Search, ask: Ask) -> tuple[list[Combination], str]:
    """Those of the combinations that equal the port's answers to further cases, too, and what was asked, in words; all of them, and no
    words, where no further case tells them apart or the port's answer to it is none of theirs."""
    words = []
    probes = search.hypotheses.probes
    bases = [probes[index] for index in (*search.cheapest()[:BASES], *search.right()[:BASES])]
    for changed, case in _changed(bases) if len(found) > 1 and bases[0].component in FORWARD else ():
        if len(found) > 1 and _some_differ(found, case):
            kept = _those_equal(found, case, ask)
            if kept and len(kept) < len(found):
                others = " and ".join(dict.fromkeys(one.id for other in found if other not in kept for one in other if one not in kept[0]))
                words.append(f"  told from {others} by {case.id}, asked again {changed}")
                found = kept
    return found, "\n".join(words)


def _some_differ(found: list[Combination], case: Case) -> bool:
    """Whether one of them answers the case otherwise than another one, by far more than what passes."""
    first, *others = [altered.answer(combination, case.at("float64")) for combination in found]
    different = [one for one, answer in zip(found[1:], others, strict=True) if altered.differ(first, answer)]
    return first is not None and any(separates(case, found[0], other) for other in different)


def _those_equal(found: list[Combination], case: Case, ask: Ask) -> list[Combination]:
    """Those that equal the port's answer to the case; none where it has none."""
    ((_, kind, answer),) = ask([case]) or [(case, "", None)]
    if kind != Kind.OUTPUTS:
        return []
    return [combination for combination in found if altered.equal(altered.expected(combination, case, answer), answer)]


def _changed(bases: list[Case]) -> Iterator[tuple[str, Case]]:
    """The cases, each changed in every way, and the way in words."""
    for words, change in CHANGES.items():
        for case in bases:
            inputs, parameters = change(case, case.inputs), change(case, case.parameters)
            if inputs is not case.inputs or parameters is not case.parameters:
                yield words, dataclasses.replace(case, inputs=inputs, parameters=parameters, twice=False)


Values = Mapping[str, Any]
Change = Callable[[Case, Values], Values]


def _times(factor: float, ends: tuple[str, ...] = ("",)) -> Change:
    """The floating numbers whose names end so, times a factor."""

    def change(case: Case, values: Values) -> Values:
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray) and value.dtype.kind == "f"}
        meant = [name for name in arrays if name.endswith(ends)]
        return dict(values) | {name: (arrays[name] * factor).astype(arrays[name].dtype) for name in meant} if meant else values

    return change


def _inputs_times(factor: float) -> Change:
    return lambda case, values: _times(factor)(case, values) if values is case.inputs else values


def _without_masks(case: Case, values: Values) -> Values:
    masks = [name for name in values if "mask" in name] if values is case.inputs else []
    return {name: value for name, value in values.items() if name not in masks} if masks else values


def _without_padding(case: Case, values: Values) -> Values:
    """The ids, another one in place of padding."""
    tokens = [name for name in ("source", "target") if isinstance(values.get(name), np.ndarray)] if values is case.inputs else []
    padding = case.config.padding_id
    if padding is None or not any((values[name] == padding).any() for name in tokens):
        return values
    other = 1 if padding != 1 else 2
    return dict(values) | {name: np.where(values[name] == padding, other, values[name]).astype(values[name].dtype) for name in tokens}


def _reversed(case: Case, values: Values) -> Values:
    return reversed_rows(case).inputs if values is case.inputs else values


CHANGES: dict[str, Change] = {
    "with its rows in reverse order": _reversed,
    "with large logits": _times(LARGE, LOGITS),
    "with large logits of the other sign": _times(-LARGE, LOGITS),
    "without a mask": _without_masks,
    "without padding": _without_padding,
    **{f"with its inputs times {factor:g}": _inputs_times(factor) for factor in SCALES},
}


RANDOM = "two evaluations of the same input differ"  # how a worker begins to say so
MODELS = ("transformer", "pool", "classify", "masked_language_logits")
OF_ROWS = ("output", "score_bw", "log_p_bn")  # outputs whose rows do not depend on each other
LONGER = 2  # columns of padding that are added
DRAWS = 4  # answers that show how far random ones lie apart


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
