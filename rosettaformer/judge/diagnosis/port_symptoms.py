"""Describes wrong outputs in sentences, each reported as soon as it is known to hold."""

from dataclasses import replace

import numpy as np

from ..catalogue import Alteration, injected
from ..expectation.components import FORWARD
from ..status import Kind
from . import altered
from .altered import Combination
from .asked_port import AskedPort
from .evidence import Evidence
from .evidence.invariances import broken_invariances
from .hypotheses.inputs import reversed_rows
from .questions import About, Task
from .symptoms import Symptom, describe
from .symptoms.common import SAYS, common

TRIED = 3  # failing cases that are tried
REVERSED = "on these cases, but not with their rows in reverse order"


def symptoms_of(task: Task, place: About, evidence: Evidence, known: Combination, aloud: bool = True) -> list[Symptom]:
    """The symptoms relative to the reference, or to the reference with the known alterations.

    For components that have no symptoms, what the failing outputs have in common. For whole models,
    on what an output depends that it should not. aloud: report them at once.
    """
    if place.component in FORWARD:
        found = describe(evidence.probes, evidence.answers, evidence.clean)
        if not any(symptom.complete for symptom in found):
            found = _besides_known(evidence, known) or found
    else:
        failing = [(evidence.probes[index], evidence.clean[index], evidence.answers[index]) for index in evidence.failing]
        found = common(failing, [evidence.probes[index] for index in evidence.right()])
    if not place.paths:
        found = _asked_again(task.port, evidence, found)
    if task.port.whole and not any(symptom.complete for symptom in found):
        found = [*found, *(Symptom("dependence", sentence, SAYS) for sentence in broken_invariances(evidence, task.port.ask))]
    for one in found if aloud or any(symptom.complete for symptom in found) else ():
        task.say(f"{place.name}: {one.sentence}")
    return found


def _asked_again(port: AskedPort, evidence: Evidence, symptoms: list[Symptom]) -> list[Symptom]:
    """The symptoms; ignored inputs must also be ignored with the rows of the batch reversed."""
    for name, one in evidence.hypotheses.ignored.items():
        said = [symptom for symptom in symptoms if symptom.ignored == name]
        if said and not _ignores(port, one, evidence):
            changed = {one: replace(one, sentence=one.sentence.replace(f"`{name}`: it is ignored", f"`{name}` {REVERSED}")) for one in said}
            symptoms = [changed.get(symptom, symptom) for symptom in symptoms]
    return symptoms


def _ignores(port: AskedPort, one: Alteration, evidence: Evidence) -> bool:
    """Whether the port ignores an input also with the rows of the failing cases reversed."""
    probes = [evidence.probes[index] for index in evidence.cheapest()[:TRIED]]
    again = [other for probe in probes if (other := reversed_rows(probe)) is not probe]
    return all(
        kind == Kind.OUTPUTS and altered.equal(altered.expected((one,), case, answer), answer) for case, kind, answer in port.ask(again)
    )


def _besides_known(evidence: Evidence, known: Combination) -> list[Symptom]:
    """Complete symptoms relative to the reference with the known alterations."""
    if not known or any(one.on(probe) is not one for one in known for probe in evidence.probes):
        return []  # symptoms need the same alteration in all cases
    clean = [altered.expected(known, probe) for probe in evidence.probes]
    if any(one is None for one in clean):
        return []
    with injected(*known), np.errstate(all="ignore"):
        found = describe(evidence.probes, evidence.answers, [one or {} for one in clean])
    names = " and ".join(one.id for one in known)
    return [replace(one, sentence=f"apart from {names}, {one.sentence}") for one in found if one.complete]
