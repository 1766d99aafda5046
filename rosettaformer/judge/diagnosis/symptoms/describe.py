"""Describes a port's answers: every family proposes predictions, and those that hold on all cases are reported, the best ones chosen."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...case import Case
from ...expectation import tolerance
from ...expectation.components import FORWARD
from ..conditions import condition
from .answered import Answered, Predicted, Prediction, Run, Symptom
from .axes import orders
from .change import Change
from .other_inputs import other_inputs
from .partial import missing, partial, restricted
from .properties import normalised, rounded, spanned
from .run_values import Step
from .sums import differences, equalities, factors, replaced

Clean = Sequence[Mapping[str, tolerance.Expectation]]
FAILURES = (ValueError, IndexError, KeyError)  # what some changes raise
DEEP, EXPLAINED = 4, 5  # by how much a change of an early step says less, and one whose meaning is known more
PROPOSING = 4  # failing cases that propose
ENOUGH = 6  # wrong elements that a prediction explains


def describe(cases: Sequence[Case], answers: Sequence[Mapping[str, Any]], framework: str = "", clean: Clean | None = None) -> list[Symptom]:
    """The symptoms that hold, the most specific first; none if no case fails.

    cases: of one component, in the dtype in which a port gave the answers. clean: the reference's expectations, if they are known.
    """
    if not cases or cases[0].component not in FORWARD:
        return []
    clean = [tolerance.expect(case) for case in cases] if clean is None else clean
    runs = [Run(case) for case in cases]
    found: list[Symptom] = []
    with np.errstate(all="ignore"):
        for name in dict.fromkeys(name for expectations in clean for name in expectations):
            found += _of_output(name, list(_answered(name, runs, clean, answers)))
    return merged(found)[:SAID]


def rounding(cases: Sequence[Case], answers: Sequence[Mapping[str, Any]], clean: Clean) -> list[Symptom]:
    """Of the symptoms that hold those that say that the answers are rounded to a smaller dtype."""
    runs, found = [Run(case) for case in cases], list[Symptom]()
    for name in dict.fromkeys(name for expectations in clean for name in expectations):
        found += chosen([*rounded([one for one in _answered(name, runs, clean, answers) if one.fails])], name)
    return found


def _answered(name: str, runs: Iterable[Run], clean: Clean, answers: Iterable[Mapping[str, Any]]) -> Iterator[Answered]:
    for run, expectations, answer in zip(runs, clean, answers, strict=True):
        if name in expectations and isinstance(got := answer.get(name), np.ndarray) and got.size and got.dtype.kind not in "OSU":
            yield Answered(run, name, expectations[name], got)


def _of_output(name: str, answered: list[Answered]) -> list[Symptom]:
    failing = [one for one in answered if one.fails]
    if not failing:
        return []
    found = _exact(answered, failing)
    if not any(symptom.complete for symptom in found):
        found += [*missing(failing), *rounded(failing)]
    if not any(symptom.complete for symptom in found):
        found += _partial(failing) or _cases(answered, failing)
        if failing[0].expectation.dtype.itemsize > 2:  # what is as near as half precision asks for is near by chance
            found += [*normalised(failing), *spanned(failing)]
    return chosen(found, name)


def _exact(answered: Sequence[Answered], failing: Sequence[Answered]) -> list[Symptom]:
    """The symptoms that say what the whole output is. Failing cases propose, in turn, until a prediction holds on every case."""
    found: dict[str, Symptom] = {}
    tried = set[str]()
    by_size = sorted(failing, key=lambda one: one.got.size)
    for one in dict.fromkeys(by_size[len(failing) * place // PROPOSING] for place in reversed(range(PROPOSING))):
        if any(symptom.complete for symptom in found.values()):
            break
        for proposal in (*_altered(one), *other_inputs(one)):
            if proposal.sentence not in tried and _holds(proposal.predict(one), one):
                tried.add(proposal.sentence)
                if symptom := _verified(proposal, answered, failing):
                    found[proposal.sentence] = symptom
    return list(found.values())


def _cases(answered: Sequence[Answered], failing: Sequence[Answered]) -> list[Symptom]:
    """What the failing cases have in common."""
    right = [one for one in answered if not one.fails]
    where = condition([one.case for one in failing], [one.case for one in right]) if min(len(failing), len(right)) > 1 else ""
    counted = f"{len(failing)} of {len(answered)} cases"
    return [Symptom("cases", f"{{output}} differs from the reference on {counted}: {where}", 50)] if where else []


def _partial(failing: Sequence[Answered]) -> list[Symptom]:
    """Where the output is right, and what it is elsewhere."""
    found = []
    for symptom, words in partial(failing):
        inner = restricted(failing, words)
        there = [one for one in best(_exact(inner, inner)) if one.complete]
        sentence, rank = (f"{symptom.sentence}; there {there[0].sentence}", 78) if there else (symptom.sentence, symptom.specificity)
        found.append(Symptom(symptom.kind, sentence, rank))
    return found


FAMILIES: tuple[Callable[[Answered, Step, np.ndarray | None], Iterator[Change]], ...] = (
    equalities, differences, replaced, factors, orders,
)  # fmt: skip


def _altered(answered: Answered) -> Iterator[Prediction]:
    """The predictions of an altered value, at the output or at one of the last steps, proposed by a case."""
    for depth, step in enumerate(answered.run.steps[answered.name]):
        for family in FAMILIES:
            for change in family(answered, step, None if depth else answered.got):
                sentence, predict = _sentence(change, step, depth), _predict(change, step.words)
                rank = change.specificity - min(depth, DEEP) + EXPLAINED * bool(change.meaning)
                yield Prediction(change.kind, sentence, rank, predict)


def _predict(change: Change, words: str) -> Callable[[Answered], Predicted]:
    def predict(answered: Answered) -> Predicted:
        with contextlib.suppress(*FAILURES):
            return _onward(answered)
        return None

    def _onward(answered: Answered) -> Predicted:
        step = next((step for step in answered.run.steps[answered.name] if step.words == words), None)
        if step is None or (altered := change.alter(answered, step.given)) is None:
            return None
        if altered.shape != step.given.shape and words != "{}":
            return None
        return step.onward(altered)

    return predict


def _sentence(change: Change, step: Step, depth: int) -> str:
    meaning = f": {change.meaning}" if change.meaning else ""
    if depth:
        given = "it" if step.sublayer else "what the reference gives it"
        return f"{{output}} is {step.words.format(change.words.format(given))}{meaning}"
    if change.kind == "difference":
        sign, _, other = change.words.removeprefix("{} ").partition(" ")
        return f"{{output}} minus the reference is {'minus ' if sign == 'minus' else ''}{other}{meaning}"
    return f"{{output}} is {change.words.format('the reference')}{meaning}"


def _holds(predicted: Predicted, answered: Answered) -> bool:
    if predicted is None:
        return False
    array, where = predicted if isinstance(predicted, tuple) else (predicted, None)
    return answered.near(array, where)


def _verified(prediction: Prediction, answered: Sequence[Answered], failing: Sequence[Answered]) -> Symptom | None:
    """The symptom, if the prediction gives the answers of all failing cases, or of those that a condition separates from the others."""
    holding, others, support = [], [], 0
    for one in answered:
        predicted = prediction.predict(one)
        if predicted is None and not one.fails:
            continue  # it says nothing of a case that has no such value
        if not _holds(predicted, one):
            others.append(one)
        elif one.fails and (count := int(one.wrong.sum())):
            holding.append(one)
            support += count
        elif one.fails:
            others.append(one)
    if support < ENOUGH:
        return None
    if not others:
        return Symptom(prediction.kind, prediction.sentence, prediction.specificity)
    where = condition([one.case for one in holding], [one.case for one in others])
    if not where or len(holding) < 2:
        return None
    less = 8 if len(holding) == len(failing) else 35
    counted = "on all cases that fail" if len(holding) == len(failing) else f"on {len(holding)} of the {len(failing)} cases that fail"
    counted = f"{counted}, {where}, "
    return Symptom(prediction.kind, f"{counted}{prediction.sentence}", prediction.specificity - less)


def only_at(cases: Sequence[Case], answers: Sequence[Mapping[str, Any]], clean: Clean) -> str:
    """The part of the output that holds all errors, in words; empty if there is none."""
    if not cases or cases[0].component not in FORWARD:
        return ""
    failing = [one for one in _answered("output", map(Run, cases), clean, answers) if one.fails]
    return next((words for _, words in partial(failing)), "") if failing else ""


SAID = 3  # symptoms that are reported
PLURAL = {"is": "are", "differs": "differ", "sums": "sum", "has": "have", "holds": "hold", "must sum": "must sum"}


def best(found: list[Symptom]) -> list[Symptom]:
    """The most specific symptom of each family; only complete ones if there are any."""
    found_by_kind: dict[str, Symptom] = {}
    for symptom in sorted(found, key=lambda symptom: -symptom.specificity):
        found_by_kind.setdefault(symptom.kind, symptom)
    strong = [symptom for symptom in found_by_kind.values() if symptom.complete]
    return strong or list(found_by_kind.values())


def chosen(found: list[Symptom], name: str) -> list[Symptom]:
    """The symptoms that are reported, in sentences about the output of that name."""
    title = f"your {name}"
    return [dataclasses.replace(one, sentence=_grammatical(one.sentence.replace("{output}", title))) for one in best(found)[:SAID]]


def _grammatical(sentence: str) -> str:
    for one, many in PLURAL.items():
        sentence = sentence.replace(f"your weights {one}", f"your weights {many}")
    return sentence


def merged(found: list[Symptom]) -> list[Symptom]:
    """The most specific first, without those of the weights that repeat one of the output."""
    said = {symptom.sentence for symptom in found}
    others = [one for one in found if _of_output_too(one.sentence) not in said - {one.sentence}]
    return sorted(others, key=lambda symptom: -symptom.specificity)


def _of_output_too(sentence: str) -> str:
    for one, many in PLURAL.items():
        sentence = sentence.replace(f"your weights {many}", f"your output {one}")
    return sentence
