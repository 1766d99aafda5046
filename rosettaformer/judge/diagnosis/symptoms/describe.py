"""Describes outputs: every family proposes predictions; the best that hold are reported."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...case import Case
from ...expectation import components, tolerance
from ...expectation.components import FORWARD
from ..hypotheses.inputs import OtherInput, other_inputs
from .answered import Answered, Predicted, Prediction, Run, Symptom
from .axes import orders
from .conditions import condition
from .partial import missing, partial, restricted
from .properties import normalised, rounded, spanned
from .sums import differences, equalities, factors

Clean = Sequence[Mapping[str, tolerance.Expectation]]
FAILURES = (ValueError, IndexError, KeyError)  # raised by changes that do not fit a case
PROPOSING = 4  # failing cases that make proposals
ENOUGH = 6  # wrong elements that a prediction must explain


def describe(cases: Sequence[Case], answers: Sequence[Mapping[str, Any]], clean: Clean | None = None) -> list[Symptom]:
    """The symptoms that hold, most specific first; empty if no case fails.

    cases: those of one component, in the dtype of the outputs. clean: the reference's expectations,
    if known.
    """
    if not cases or cases[0].component not in FORWARD:
        return []
    clean = [tolerance.expect(case) for case in cases] if clean is None else clean
    with np.errstate(all="ignore"):
        said = {name: _of_output(answered) for name, answered in _by_output(cases, answers, clean).items()}
    repeated = [one.sentence for one in said.get("output", ())]
    found = [_worded(one, name) for name, own in said.items() for one in own if name != "weights" or one.sentence not in repeated]
    return sorted(found, key=lambda symptom: -symptom.specificity)[:SAID]


def rounding(cases: Sequence[Case], answers: Sequence[Mapping[str, Any]], clean: Clean) -> list[Symptom]:
    """The symptoms that say that the outputs are rounded to a smaller dtype."""
    outputs = _by_output(cases, answers, clean).items()
    return [_worded(one, name) for name, answered in outputs for one in rounded([each for each in answered if each.fails])]


def _by_output(cases: Sequence[Case], answers: Sequence[Mapping[str, Any]], clean: Clean) -> dict[str, list[Answered]]:
    """The outputs by name."""
    runs = [Run(case) for case in cases]
    return {name: list(_answered(name, runs, clean, answers)) for name in dict.fromkeys(itertools.chain(*clean))}


def _answered(name: str, runs: Iterable[Run], clean: Clean, answers: Iterable[Mapping[str, Any]]) -> Iterator[Answered]:
    for run, expectations, answer in zip(runs, clean, answers, strict=True):
        if name in expectations and isinstance(got := answer.get(name), np.ndarray) and got.size and got.dtype.kind not in "OSU":
            yield Answered(run, name, expectations[name], got)


def _of_output(answered: list[Answered]) -> list[Symptom]:
    """The reported symptoms of one output; `{output}` stands for its name."""
    failing = [one for one in answered if one.fails]
    if not failing:
        return []
    found = _exact(answered, failing)
    if not any(symptom.complete for symptom in found):
        found += [*missing(failing), *rounded(failing)]
    if not any(symptom.complete for symptom in found):
        found += _partial(failing) or _cases(answered, failing)
        if failing[0].expectation.dtype.itemsize > 2:  # half precision is too coarse: chance matches would pass
            found += [*normalised(failing), *spanned(failing)]
    return best(found)[:SAID]


def _exact(answered: Sequence[Answered], failing: Sequence[Answered]) -> list[Symptom]:
    """The complete symptoms; failing cases make proposals until one holds on every case."""
    found: dict[str, Symptom] = {}
    tried = set[str]()
    by_size = sorted(failing, key=lambda one: one.got.size)
    for one in dict.fromkeys(by_size[len(failing) * place // PROPOSING] for place in reversed(range(PROPOSING))):
        if any(symptom.complete for symptom in found.values()):
            break
        for proposal in _proposals(one):
            if proposal.sentence not in tried and _holds(_predicted(proposal, one), one):
                tried.add(proposal.sentence)
                if symptom := _verified(proposal, answered, failing):
                    found[proposal.sentence] = symptom
    return list(found.values())


def _cases(answered: Sequence[Answered], failing: Sequence[Answered]) -> list[Symptom]:
    """The property that the failing cases have in common."""
    right = [one for one in answered if not one.fails]
    where = condition([one.case for one in failing], [one.case for one in right]) if min(len(failing), len(right)) > 1 else ""
    counted = f"{len(failing)} of {len(answered)} cases"
    return [Symptom("cases", f"{{output}} differs from the reference on {counted}, {where}", 50)] if where else []


def _partial(failing: Sequence[Answered]) -> list[Symptom]:
    """Where the output is wrong, and what it is there."""
    found = []
    for symptom, words in partial(failing):
        inner = restricted(failing, words)
        there = [one for one in best(_exact(inner, inner)) if one.complete]
        if there:
            sentence = f"{symptom.sentence}; there {there[0].sentence}"
            symptom = dataclasses.replace(there[0], kind=symptom.kind, sentence=sentence, specificity=78)
        found.append(symptom)
    return found


def _proposals(answered: Answered) -> Iterator[Prediction]:
    """The predictions that a failing case proposes."""
    for family in (equalities, differences, factors, orders):
        yield from family(answered)
    yield from map(_of_input, other_inputs(answered.case))


def _of_input(other: OtherInput) -> Prediction:
    """Predicts the reference's output with a changed input."""

    def predict(answered: Answered) -> Predicted:
        case = other.change(answered.case.at("float64"))
        return answered.reference if case is None else components.answer(case)[answered.name].astype(np.float64)

    return Prediction("inputs", f"{{output}} is what the reference gives {other.words}", 87, predict, other.ignored)


def _holds(predicted: Predicted, answered: Answered) -> bool:
    if predicted is None:
        return False
    array, where = predicted if isinstance(predicted, tuple) else (predicted, None)
    return answered.near(array, where)


def _predicted(prediction: Prediction, answered: Answered) -> Predicted:
    with contextlib.suppress(*FAILURES):
        return prediction.predict(answered)
    return None


def _verified(prediction: Prediction, answered: Sequence[Answered], failing: Sequence[Answered]) -> Symptom | None:
    """The symptom if it holds on all failing cases, or on those that a condition separates."""
    holding, others, support = [], [], 0
    for one in answered:
        predicted = _predicted(prediction, one)
        if predicted is None and not one.fails:
            continue  # the prediction does not apply to this case
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
        return Symptom(prediction.kind, prediction.sentence, prediction.specificity, prediction.ignored)
    where = condition([one.case for one in holding], [one.case for one in others])
    if not where or len(holding) < 2:
        return None
    all_ = len(holding) == len(failing)
    counted = "all failing cases" if all_ else f"{len(holding)} of the {len(failing)} failing cases"
    rank = prediction.specificity - (8 if all_ else 35)
    return Symptom(prediction.kind, f"on {counted}, {where}, {prediction.sentence}", rank, prediction.ignored)


def only_at(cases: Sequence[Case], answers: Sequence[Mapping[str, Any]], clean: Clean) -> str:
    """The part of the output that holds all errors, in words; empty if there is none."""
    shown = cases and cases[0].component in FORWARD
    failing = [one for one in _answered("output", map(Run, cases), clean, answers) if one.fails] if shown else []
    return next((words for _, words in partial(failing)), "") if failing else ""


SAID = 3  # symptoms reported at most
PLURAL = {"is": "are", "differs": "differ", "sums": "sum", "has": "have", "holds": "hold", "must sum": "must sum"}


def best(found: list[Symptom]) -> list[Symptom]:
    """The most specific symptom of each family; only complete ones if there are any."""
    found_by_kind: dict[str, Symptom] = {}
    for symptom in sorted(found, key=lambda symptom: -symptom.specificity):
        found_by_kind.setdefault(symptom.kind, symptom)
    strong = [symptom for symptom in found_by_kind.values() if symptom.complete]
    return strong or list(found_by_kind.values())


def _worded(symptom: Symptom, name: str) -> Symptom:
    """The symptom with the output's name in its sentence."""
    sentence = symptom.sentence.replace("{output}", f"your {name}")
    for one, many in PLURAL.items():
        sentence = sentence.replace(f"your weights {one}", f"your weights {many}")
    return dataclasses.replace(symptom, sentence=sentence)
