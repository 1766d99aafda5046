"""Finds sizes in a config.json that contradict its tensors; each is one line that names the entry."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from reference_numpy import TransformerConfig

from ..tables import Native
from .family import Family

_FIELDS = {"d": "model_width", "f": "feed_forward_width", "p": "max_positions", "a": "segments"}
_OF_HEADS = {"h": "heads", "g": "key_value_heads", "k": "key_size", "e": "value_size"}
# fields -> how the names of tensors end that only a model with the field has
_BIASES = {
    "query_key_value_bias": "attention.query.bias", "attention_output_bias": "attention.output.bias", "feed_forward_bias": ".hidden.bias",
}  # fmt: skip


def contradictions(family: Family, natives: Mapping[str, Native], tensors: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Returns a line for every entry whose axes have another size in all tensors. natives: by their stored names."""
    entries = family.entry_names()
    letters = {letter: entries[field] for letter, field in _FIELDS.items() if field in entries} | {"v": "vocab_size", "c": "id2label"}
    letters |= {f"({pair})": _together(entries, pair) for pair in ("h k", "h e", "g k", "g e")}
    sizes: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for key, native in natives.items():
        if len(native.parts) > 1 and key in tensors and len(tensors[key].shape) == len(native.shape):
            stacked = [letters.get(_axes(part.axes)[native.axis], "") for part, _, _ in native.parts]
            if all(stacked) and len({*stacked}) > 1:
                sizes[" + ".join(stacked)].add((native.shape[native.axis], tensors[key].shape[native.axis]))
        axes = _axes(native.parts[0][0].axes)
        if len(native.parts) == 1 and key in tensors and len(tensors[key].shape) == len(axes):
            for letter, wanted, got in zip(axes, native.shape, tensors[key].shape, strict=True):
                sizes[letters.get(letter, "")].add((wanted, got))
    sizes.pop("", None)
    for entry, pairs in sizes.items():
        (wanted, got), *others = pairs
        if not others and wanted != got:
            yield f"config.json says {entry} {wanted}, but the tensors have {got}"


def _axes(letters: str) -> list[str]:
    """Returns the axes of a tensor, each of which may be several canonical ones in brackets."""
    return re.findall(r"\(.*?\)|\w+", letters)


def _together(entries: Mapping[str, str], letters: str) -> str:
    """Returns the entries of the axes that are one axis of a tensor; empty if none of them is an entry of its own."""
    count, size = (entries.get(_OF_HEADS[letter], "") for letter in letters.split())
    if size:
        return f"{count} x {size}" if count else ""
    width, heads = entries.get("model_width"), entries.get("heads")
    return f"{count} x {width} / {heads}" if count and count != heads else ""


def switched(family: Family, config: TransformerConfig, names: Iterable[str]) -> tuple[TransformerConfig, list[str]]:
    """Returns the config with the biases that the tensors show, by their native names, and a line for every entry that denies them."""
    present, problems = {re.sub(r"\.\d+\.", ".*.", name) for name in names}, []
    for entry in family.entries:
        own = [row.name for row in family.table if any(row.parts[0].name.endswith(_BIASES.get(field, "\n")) for field in entry.fields)]
        said, shown = bool(own) and getattr(config, entry.fields[0]), bool(present & {*own})
        if own and said != shown:
            problems.append(f"config.json says {entry.name} {str(said).lower()}, but there is {'a' if shown else 'no'} {own[0]}")
            config = config.replace(**dict.fromkeys(entry.fields, shown))
    return config, problems


def layered(family: Family, config: TransformerConfig, names: Iterable[str]) -> tuple[TransformerConfig, list[str]]:
    """Returns the config with the number of layers that the tensors show, by their native names, and a line if it differs.

    Nothing is built for a layer before a tensor proves it exists: a file may claim any number.
    """
    names, problems = list(names), []
    entries = family.entry_names()
    for row in {row.name.partition("*")[0]: row for row in family.table if "*" in row.name}.values():
        field = f"{row.parts[0].name.partition('.')[0]}_layers"
        present = {int(found[1]) for name in names if (found := re.match(rf"{re.escape(row.name.partition('*')[0])}(\d{{1,9}})\.", name))}
        count, said = max(present, default=-1) + 1, getattr(config, field)
        if count > len(names):
            count = next(index for index in range(len(present) + 1) if index not in present)
        if count != said:
            problems.append(f"config.json says {entries[field]} {said}, but the tensors have {count}")
            config = config.replace(**{field: max(count, 1)})
    return config, problems
