"""Chooses the symptoms that are reported, and names their output."""

import dataclasses

from .symptom import Symptom

__all__ = ["SAID", "best", "chosen", "merged"]

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
