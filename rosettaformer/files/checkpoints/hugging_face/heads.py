"""Selects the heads of a folder's model: those of its class and those that its tensors show, except those that are left out."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .entries import labels
from .family import Family, Head


class Heads:
    """chosen: the heads that are read. left: those that are left out. alien: those that no config supports; their tensors, and those of
    `left`, are no parameters. problems: everything that is wrong.
    """

    def __init__(self) -> None:
        self.chosen: set[str] = set()
        self.left: list[Head] = []
        self.alien: list[Head] = []
        self.problems: list[str] = []


def advice(head: str) -> str:
    return f"leave it out with --ignore {head} (ignore in Python)"


def belonging(heads: Iterable[Head], names: Iterable[str]) -> list[str]:
    """Returns the native names that belong to these heads."""
    patterns = [head.tensors for head in heads]
    return [name for name in names if any(re.fullmatch(pattern, name) for pattern in patterns)]


def select(family: Family, entries: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], ignore: Sequence[str]) -> Heads:
    """Selects the heads of a model with these entries of config.json and tensors of these shapes, by native name.

    ignore: names that are no heads, too, which mean nothing here.
    """
    result, known = Heads(), {head.name: head for head in family.heads}
    said, named = entries.get("architectures"), None  # the heads of the class that it names
    if isinstance(said, list) and len(said) == 1 and isinstance(said[0], str):
        named = family.classes.get(said[0])
    if named is None and said not in (None, []):
        wanted = f"architectures must name one class of {', '.join(family.classes)}"
        result.problems.append(f"config.json: {wanted}; got {json.dumps(said):.200}")
    result.left = [known[name] for name in ignore if name in known]
    result.chosen = {*(named or ())} - {*ignore}
    left = {*belonging(result.left, shapes)}
    rest = {name: shape for name, shape in shapes.items() if name not in left}
    for alike in _others(family, result.chosen, rest):
        head = next((one for one in alike if named is None and one.shown(shapes, labels(entries))), alike[0])
        if head.flag is not None and (named is None or len(alike) == 1):
            result.chosen.add(head.name)  # the class need not be known
        else:
            result.alien.append(head)
            why = "is not supported" if head.flag is None else "the class of `architectures` has not"
            guess = ", as far as tensors without a class tell" if named is None and len(alike) > 1 else ""
            result.problems.append(f"{belonging([head], rest)[0]} is of a {head.name}{guess}, which {why}: {advice(head.name)}")
    for head in family.heads:
        if head.flag is None and head.name in result.chosen:
            result.alien.append(head)
            what = f"{json.dumps(said)} has a {head.name}, which is not supported"
            result.problems.append(f"config.json: {what}: {advice(head.name)}")
    return result


def _others(family: Family, chosen: Collection[str], natives: Iterable[str]) -> Iterator[list[Head]]:
    """Returns the heads, beyond the chosen ones, that the tensors show; heads with equal tensor names come together."""
    seen = {head.tensors for head in family.heads if head.name in chosen}
    for head in family.heads:
        if head.tensors not in seen and belonging([head], natives):
            seen.add(head.tensors)
            yield [other for other in family.heads if other.tensors == head.tensors]
