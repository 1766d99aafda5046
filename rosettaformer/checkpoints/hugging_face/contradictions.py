"""Sizes of a config.json that the tensors beside it contradict, each in one line that names the entry."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from ..tables import Native
from .family import Family

__all__ = ["contradictions"]

_FIELDS = {"d": "model_width", "f": "feed_forward_width", "p": "max_positions", "a": "segments"}


def contradictions(family: Family, natives: Mapping[str, Native], tensors: Mapping[str, np.ndarray]) -> Iterator[str]:
    """A line for every entry of which all tensors of its axis, or the last layer, show another value. natives: by their stored names."""
    entries = {field: entry.name for entry in reversed(family.entries) for field in entry.fields}
    letters = {letter: entries[field] for letter, field in _FIELDS.items() if field in entries} | {"v": "vocab_size", "c": "id2label"}
    sizes: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for key, native in natives.items():
        axes = native.parts[0][0].axes.split()
        if len(native.parts) == 1 and key in tensors and len(tensors[key].shape) == len(axes):
            for letter, wanted, got in zip(axes, native.shape, tensors[key].shape, strict=True):
                sizes[letters.get(letter, "")].add((wanted, got))
    sizes.pop("", None)
    for entry, pairs in [*sizes.items(), *_layers(family, natives, tensors, entries)]:
        (wanted, got), *others = pairs
        if not others and wanted != got:
            yield f"config.json says {entry} {wanted}, but the tensors have {got}"


def _layers(
    family: Family, natives: Mapping[str, Native], tensors: Mapping[str, np.ndarray], entries: Mapping[str, str]
) -> Iterator[tuple[str, set[tuple[int, int]]]]:
    """The number of layers that is said, and that the tensors have."""
    row = next(row for row in family.table if "*" in row.name)
    pattern = re.compile(rf"({re.escape(family.prefix)})?{re.escape(row.name.partition('*')[0])}(\d{{1,4}})\..*")
    counts = [max((int(found[2]) + 1 for key in keys if (found := pattern.fullmatch(key))), default=0) for keys in (natives, tensors)]
    yield entries[f"{row.parts[0].name.partition('.')[0]}_layers"], {(counts[0], counts[1])}
