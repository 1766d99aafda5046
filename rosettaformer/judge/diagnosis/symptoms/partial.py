"""Symptoms about a part of the output: correct outside of it, or NaN exactly there."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from .answered import Answered, Symptom
from .axes import letters

LARGEST = 0.95  # share of the output; a larger part says little
LARGEST_EXACT = 0.5  # the same for masks and ids, many of which agree by chance


def partial(failing: Sequence[Answered]) -> list[tuple[Symptom, str]]:
    """The smallest part that contains every error, with its words; empty if there is none."""
    if not all(one.shaped and one.wrong.any() for one in failing):
        return []
    found: dict[str, float] = {}
    for words in _common(failing):
        masks = [_region(one, words) for one in failing]
        if all(mask is not None and not (one.off & ~mask).any() for one, mask in zip(failing, masks, strict=True)):
            found[words] = float(np.mean([mask.mean() for mask in masks if mask is not None]))
    words = min(found, key=lambda words: found[words], default="")
    exact = failing[0].expectation.dtype.kind in "biu"
    if not words or found[words] > (LARGEST_EXACT if exact else LARGEST) or sum(int(one.got.size - one.off.sum()) for one in failing) < 4:
        return []
    return [(Symptom("partial", f"{{output}} differs from the reference only at {words}", 60), words)]


def _common(failing: Sequence[Answered]) -> list[str]:
    """The parts that exist in all failing cases."""
    names = [dict(regions(one)) for one in failing]
    return [words for words in names[0] if all(words in other for other in names)]


def _region(answered: Answered, words: str) -> np.ndarray | None:
    mask = dict(regions(answered)).get(words)
    return None if mask is None else np.broadcast_to(mask, answered.reference.shape)


def restricted(failing: Sequence[Answered], words: str) -> list[Answered]:
    """The outputs restricted to that part."""
    return [dataclasses.replace(one, where=_region(one, words)) for one in failing]


def missing(failing: Sequence[Answered]) -> Iterator[Symptom]:
    """Yields where the outputs are NaN or infinite although the reference is finite."""
    if not all(one.shaped for one in failing):
        return
    for kind, test in (("NaN", np.isnan), ("infinite", np.isinf)):
        places = [test(one.got) & ~test(one.reference) for one in failing]
        if not any(place.any() for place in places):
            continue
        count = sum(place.any() for place in places)
        right = not any((one.off & ~place).any() for one, place in zip(failing, places, strict=True))
        elsewhere = "and correct elsewhere" if right else f"on {count} of the {len(failing)} failing cases, and wrong elsewhere, too"
        if all(place.all() for place in places):
            yield Symptom("missing", f"{{output}} is {kind} everywhere", 70)
            continue
        for words in _common(failing):
            masks = [_region(one, words) for one in failing]
            if all(mask is not None and np.array_equal(mask, place) for mask, place in zip(masks, places, strict=True)):
                yield Symptom("missing", f"{{output}} is {kind} exactly at {words} {elsewhere}", 93 if right else 55)
                break


Region = tuple[str, np.ndarray]  # words that fit `only at {}`, and a mask that broadcasts to the output
NAMES = {"b": ("row of the batch", "rows of the batch"), "t": ("position", "positions"), "h": ("head", "heads"), "l": ("layer", "layers"),
         "v": ("token of the vocabulary", "vocabulary"), "c": ("class", "classes")}  # fmt: skip
FEATURE = ("feature", "features")
LISTED = 3  # single indices listed at most


def regions(answered: Answered) -> Iterator[Region]:
    """The parts of an output as masks, with words that mean the same in every case."""
    axes, shape = letters(answered), answered.reference.shape
    if len(axes) != len(shape):
        return
    yield from _masked(answered, axes)
    for axis, size in enumerate(shape):
        if size > 1:
            place = [1] * len(shape)
            place[axis] = size
            real_bt = _real(answered, axes) if _names(axes, axis) == NAMES["t"] else None
            if real_bt is None:
                index, count, real = np.arange(size).reshape(place), np.asarray(size), np.ones(1, bool)
            else:
                index, count, real = (_placed(array, "bt", axes) for array in _counted(real_bt))
            for words, chosen in _along(*_names(axes, axis), index, count):
                yield words, chosen & real
    yield from _listed(answered, axes)


def _names(axes: str, axis: int) -> tuple[str, str]:
    """The singular and plural of an axis: s is keys if there are queries, else positions."""
    if axes[axis] == "s":
        return ("key", "keys") if "t" in axes else NAMES["t"]
    return NAMES.get(axes[axis], FEATURE)


def _real(answered: Answered, axes: str) -> np.ndarray | None:
    """The mask of a whole model's real tokens, among which positions count; else None."""
    real_bt = answered.case.real_bt if answered.case.folder else None
    shape = dict(zip(axes.replace("s", "t") if "t" not in axes else axes, answered.reference.shape, strict=True))
    return real_bt if real_bt is not None and real_bt.shape == (shape.get("b"), shape.get("t")) else None


def _counted(real_bt: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each token's position among the real ones of its row, their number, and if it is real."""
    return np.cumsum(real_bt, axis=1) - 1, np.broadcast_to(real_bt.sum(axis=1, keepdims=True), real_bt.shape), real_bt


def _along(one: str, all_: str, index: np.ndarray, size: np.ndarray) -> Iterator[Region]:
    """Parts of an axis. index: the index of every element along it. size: their number."""
    yield f"the first {one}", index == 0
    yield f"the last {one}", index == size - 1
    for count in range(1, min(int(size.max()), 5)):
        yield f"every {one} but the first{'' if count == 1 else f' {count}'}", index >= count
    yield f"every {one} but the last", index < size - 1
    yield f"the even-numbered {all_}, counted from 0", index % 2 == 0
    yield f"the odd-numbered {all_}, counted from 0", index % 2 == 1
    yield f"the first half of the {all_}", index < size // 2
    yield f"the second half of the {all_}", index >= size // 2


def _listed(answered: Answered, axes: str) -> Iterator[Region]:
    """The wrong heads and features, if there are few."""
    wrong = answered.off
    for axis in (axis for axis, letter in enumerate(axes) if letter in "hdekfrvcl"):
        others = tuple(other for other in range(wrong.ndim) if other != axis)
        found = np.flatnonzero(wrong.any(others))
        if 0 < len(found) <= min(LISTED, wrong.shape[axis] // 2):
            place = [1] * wrong.ndim
            place[axis] = wrong.shape[axis]
            name, _ = _names(axes, axis)
            listed = " and ".join(f"{name} {index}" for index in found)
            yield listed, np.isin(np.arange(wrong.shape[axis]), found).reshape(place)


def _masked(answered: Answered, axes: str) -> Iterator[Region]:
    """Padding tokens, queries without keys, and queries that may not attend to every key."""
    shape = dict(zip(axes, answered.reference.shape, strict=True))
    length = shape.get("t", shape.get("s", 0))
    for words, mask_bt in _tokens(answered):
        if mask_bt.shape == (shape.get("b"), length):
            yield words, _placed(mask_bt, "bt", axes)
    for name, mask_bhts in _attention(answered) if "b" in axes and length else ():
        if mask_bhts.shape[2] not in (1, length) or mask_bhts.shape[0] not in (1, shape["b"]):
            continue
        of = f" in {name}" if name else ""
        full = np.broadcast_to(mask_bhts, (shape["b"], mask_bhts.shape[1], length, mask_bhts.shape[3]))
        for words, rows in (
            (f"the queries without any visible key{of}", full.sum(-1) == 0),
            (f"the queries with a masked key{of}", full.sum(-1) < full.shape[-1]),
            (f"the queries with a single visible key{of}", full.sum(-1) == 1),
        ):
            if "h" in axes:
                yield words, _placed(rows, "bht", axes)
            else:
                yield words, _placed(rows.max(1), "bt", axes)
        if axes == "bhts" and full.shape[3] == shape["s"]:
            yield f"the masked keys{of}", ~full
            yield f"the visible keys{of}", full
    if axes == "bhts":
        later = np.arange(shape["s"]) - np.arange(shape["t"])[:, None] - (shape["s"] - shape["t"])
        yield "the diagonal, where query and key have the same position", (later == 0)[None, None]
        yield "the keys after the query", (later > 0)[None, None]
        yield "the keys up to the query", (later <= 0)[None, None]


def _placed(mask: np.ndarray, own: str, axes: str) -> np.ndarray:
    """A mask in the axes of an output; `t` stands for `s` if there are no queries."""
    axes = axes if "t" in axes else axes.replace("s", "t")
    order = [own.index(letter) for letter in axes if letter in own]
    moved = mask.transpose(order)
    sizes = iter(moved.shape)
    return moved.reshape([next(sizes) if letter in own else 1 for letter in axes])


def _tokens(answered: Answered) -> Iterator[Region]:
    case = answered.case
    found: dict[str, np.ndarray] = {}
    for name, value in case.inputs.items():
        if not isinstance(value, np.ndarray):
            continue
        if name in ("source", "target", "token") and value.ndim == 2 and case.config.padding_id is not None:
            found[name] = value != case.config.padding_id
        elif value.dtype.kind == "b" and value.ndim == 2:
            found[name] = value
        elif value.dtype.kind == "b" and value.ndim == 4 and value.shape[1:3] == (1, 1):
            found[name] = value[:, 0, 0]
    for name, mask_bt in found.items():
        if mask_bt.all():
            mask_bt = np.ones_like(mask_bt)
        yield f"padding tokens (`{name}`)", ~mask_bt
        yield f"real tokens (`{name}`)", mask_bt
        yield f"the rows of the batch that have padding (`{name}`)", np.broadcast_to(~mask_bt.all(1, keepdims=True), mask_bt.shape)
        yield f"the tokens from the first padding token on (`{name}`)", np.logical_or.accumulate(~mask_bt, axis=1)
        yield f"the tokens after padding (`{name}`)", np.logical_or.accumulate(~mask_bt, axis=1) & mask_bt


def _attention(answered: Answered) -> Iterator[Region]:
    """The masks of the first layer's attentions, including causality, by kind."""
    seen = set()
    for path, call in answered.run.calls.items():
        if call.component == "softmax" and isinstance(mask := call.inputs.get("mask"), np.ndarray) and mask.ndim == 4:
            kind = next((part for part in ("cross_attention", "self_attention") if part in path), "")
            stack = path.partition(".")[0] if path.startswith(("encoder", "decoder")) else ""
            if (name := " ".join(filter(None, (stack, kind.replace("_", "-"))))) not in seen:
                seen.add(name)
                yield name, mask
