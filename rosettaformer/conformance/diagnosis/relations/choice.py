"""Which of the relations that hold are said, and of which output."""

import dataclasses

from .relation import Relation

__all__ = ["SAID", "best", "chosen", "merged"]

SAID = 3  # so many relations at most
PLURAL = {"is": "are", "differs": "differ", "sums": "sum", "has": "have", "holds": "hold", "must sum": "must sum"}


def best(found: list[Relation]) -> list[Relation]:
    """The one of each family that says the most; where one says all of the output, no other that says less."""
    found_by_kind: dict[str, Relation] = {}
    for relation in sorted(found, key=lambda relation: -relation.specificity):
        found_by_kind.setdefault(relation.kind, relation)
    strong = [relation for relation in found_by_kind.values() if relation.complete]
    return strong or list(found_by_kind.values())


def chosen(found: list[Relation], name: str) -> list[Relation]:
    """Those that are said of the output of that name."""
    title = f"your {name}"
    return [dataclasses.replace(one, sentence=_grammatical(one.sentence.replace("{output}", title))) for one in best(found)[:SAID]]


def _grammatical(sentence: str) -> str:
    for one, many in PLURAL.items():
        sentence = sentence.replace(f"your weights {one}", f"your weights {many}")
    return sentence


def merged(found: list[Relation]) -> list[Relation]:
    """The most specific first, without what says the same of the weights that the output's says."""
    said = {relation.sentence for relation in found}
    others = [one for one in found if _of_output_too(one.sentence) not in said - {one.sentence}]
    return sorted(others, key=lambda relation: -relation.specificity)


def _of_output_too(sentence: str) -> str:
    for one, many in PLURAL.items():
        sentence = sentence.replace(f"your weights {many}", f"your output {one}")
    return sentence
