"""The family of partial answers: right except in a part of the output, or NaN in exactly one part."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from .answered import Answered
from .regions import regions
from .symptom import Symptom

__all__ = ["missing", "partial", "restricted"]

LARGEST = 0.95  # of the output: a part that is larger says little
LARGEST_EXACT = 0.5  # of masks and ids, which agree by chance in many places


def partial(failing: Sequence[Answered]) -> list[tuple[Symptom, str]]:
    """The smallest part that holds all errors of every failing answer, with its words; empty if there is none."""
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
    """The parts that all failing cases have."""
    names = [dict(regions(one)) for one in failing]
    return [words for words in names[0] if all(words in other for other in names)]


def _region(answered: Answered, words: str) -> np.ndarray | None:
    mask = dict(regions(answered)).get(words)
    return None if mask is None else np.broadcast_to(mask, answered.reference.shape)


def restricted(failing: Sequence[Answered], words: str) -> list[Answered]:
    """The answers restricted to that part."""
    return [dataclasses.replace(one, where=_region(one, words)) for one in failing]


def missing(failing: Sequence[Answered]) -> Iterator[Symptom]:
    """Says where the answers are NaN or infinite although the reference is finite."""
    if not all(one.shaped for one in failing):
        return
    for kind, test in (("NaN", np.isnan), ("infinite", np.isinf)):
        places = [test(one.got) & ~test(one.reference) for one in failing]
        if not any(place.any() for place in places):
            continue
        count = sum(place.any() for place in places)
        right = not any((one.off & ~place).any() for one, place in zip(failing, places, strict=True))
        elsewhere = "and right elsewhere" if right else f"on {count} of the {len(failing)} cases that fail, and wrong elsewhere, too"
        if all(place.all() for place in places):
            yield Symptom("missing", f"{{output}} is {kind} everywhere", 70)
            continue
        for words in _common(failing):
            masks = [_region(one, words) for one in failing]
            if all(mask is not None and np.array_equal(mask, place) for mask, place in zip(masks, places, strict=True)):
                yield Symptom("missing", f"{{output}} is {kind} exactly at {words} {elsewhere}", 93 if right else 55)
                break
