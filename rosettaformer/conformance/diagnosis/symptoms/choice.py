"""Which of the symptoms that hold are said, and of which output."""

import dataclasses

from .symptom import Symptom

__all__ = ["SAID", "best", "chosen", "merged"]

SAID = 3  # so many symptoms at most
PLURAL = {"is": "are", "differs": "differ", "sums": "sum", "has": "have", "holds": "hold", "must sum": "must sum"}


def best(found: list[Symptom]) -> list[Symptom]:
    """The one of each family that says the most; where one says all of the output, no other that says less."""
    found_by_kind: dict[str, Symptom] = {}
    for symptom in sorted(found, key=lambda symptom: -symptom.specificity):
        found_by_kind.setdefault(symptom.kind, symptom)
    strong = [symptom for symptom in found_by_kind.values() if symptom.complete]
    return strong or list(found_by_kind.values())


def chosen(found: list[Symptom], name: str) -> list[Symptom]:
    """Those that are said of the output of that name."""
    title = f"your {name}"
    return [dataclasses.replace(one, sentence=_grammatical(one.sentence.replace("{output}", title))) for one in best(found)[:SAID]]


def _grammatical(sentence: str) -> str:
    for one, many in PLURAL.items():
        sentence = sentence.replace(f"your weights {one}", f"your weights {many}")
    return sentence


def merged(found: list[Symptom]) -> list[Symptom]:
    """The most specific first, without what says the same of the weights that the output's says."""
    said = {symptom.sentence for symptom in found}
    others = [one for one in found if _of_output_too(one.sentence) not in said - {one.sentence}]
    return sorted(others, key=lambda symptom: -symptom.specificity)


def _of_output_too(sentence: str) -> str:
    for one, many in PLURAL.items():
        sentence = sentence.replace(f"your weights {many}", f"your output {one}")
    return sentence
