"""Selects a model's heads from its class and its tensors, except ignored heads."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .entries import labels
from .family import Family, Head


class Heads:
    """The heads of a model.

    chosen: heads to read. left: ignored heads. alien: heads that no config supports. problems:
    everything that is wrong. The tensors of left and alien heads are not parameters.
    """

    def __init__(self) -> None:
        self.chosen: set[str] = set()
        self.left: list[Head] = []
        self.alien: list[Head] = []
        self.problems: list[str] = []


def advice(head: str) -> str:
    return f"ignore it with --ignore {head} (in Python: ignore)"


def belonging(heads: Iterable[Head], names: Iterable[str]) -> list[str]:
    """Returns the native names that belong to these heads."""
    patterns = [head.tensors for head in heads]
    return [name for name in names if any(re.fullmatch(pattern, name) for pattern in patterns)]


def select(family: Family, entries: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], ignore: Sequence[str]) -> Heads:
    """Selects heads from the entries of config.json and the tensors' shapes by native name.

    ignore: heads to ignore; other names have no effect.
    """
    result, known = Heads(), {head.name: head for head in family.heads}
    said, named = entries.get("architectures"), None  # named: the heads of that class
    if isinstance(said, list) and len(said) == 1 and isinstance(said[0], str):
        named = family.classes.get(said[0])
    if named is None and said not in (None, []):
        wanted = f"architectures must name one of the classes {', '.join(family.classes)}"
        result.problems.append(f"config.json: {wanted}; got {json.dumps(said):.200}")
    result.left = [known[name] for name in ignore if name in known]
    result.chosen = {*(named or ())} - {*ignore}
    left = {*belonging(result.left, shapes)}
    rest = {name: shape for name, shape in shapes.items() if name not in left}
    for alike in _others(family, result.chosen, rest):
        head = next((one for one in alike if named is None and one.shown(shapes, labels(entries))), alike[0])
        if head.flag is not None and (named is None or len(alike) == 1):
            result.chosen.add(head.name)  # even if the class is unknown
        else:
            result.alien.append(head)
            why = "is not supported" if head.flag is None else "the class in `architectures` lacks"
            guess = " (a guess, since config.json names no class)" if named is None and len(alike) > 1 else ""
            name = belonging([head], rest)[0]
            result.problems.append(f"{name} belongs to a {head.name}{guess}, which {why}; {advice(head.name)}")
    for head in family.heads:
        if head.flag is None and head.name in result.chosen:
            result.alien.append(head)
            what = f"{json.dumps(said)} has a {head.name}, which is not supported"
            result.problems.append(f"config.json: {what}; {advice(head.name)}")
    return result


def _others(family: Family, chosen: Collection[str], natives: Iterable[str]) -> Iterator[list[Head]]:
    """Yields the unchosen heads that the tensors show; heads with equal tensor names together."""
    seen = {head.tensors for head in family.heads if head.name in chosen}
    for head in family.heads:
        if head.tensors not in seen and belonging([head], natives):
            seen.add(head.tensors)
            yield [other for other in family.heads if other.tensors == head.tensors]
