"""Recognizes attention and feed-forward activations that run between two layers.

The reference computes each candidate (a reading) from the outputs of the layers before; a reading
is reported only if it reproduces the numbers of a side.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import attention, feed_forward, rotary, softmax
from reference_numpy.config import ACTIVATIONS
from reference_numpy.rotary_scaling import RotaryScaling
from reference_numpy.scores import Scores
from reference_numpy.values import Heads

PROJECTIONS = ("query", "key", "value")
BASES = (1e4, 1e6, 5e5, 1e5, 1e3)  # bases of rotary positions; those of published models come first
CLOSE = 1e-5  # relative to the largest number: above rounding in float32, below any other reading
LARGEST = 1 << 17  # maximum size of a map of attention weights
EXPERTS = 512  # maximum number of experts
EXACT = 1e-3  # relative error of a factor that is measured in float32
UNKNOWN = "nothing that is recognized"
Reading = dict[str, str]
NOTHING: Mapping[str, np.ndarray] = {}


def said(
    given: Mapping[str, np.ndarray], words: Mapping[str, Sequence[str]], sides: Sequence[np.ndarray], bases: Iterable[float],
    around: Mapping[str, np.ndarray] = NOTHING,
) -> str:  # fmt: skip
    """Returns a sentence on how each side computed its array; empty if neither is recognized.

    given: outputs of the layers before, in execution order. words: words in the names of these
    layers. sides: the arrays of the left and the right. bases: rotary bases that the configs name.
    around: inputs and outputs of the layers before, which may run past the place.
    """
    with np.errstate(all="ignore"):
        found = _found(_attention(given, words, sides, bases), sides)
    return _sentence(found) if any(found) else elementwise(dict([*given.items()][-2:]), sides, around)


def elementwise(given: Mapping[str, np.ndarray], sides: Sequence[np.ndarray], around: Mapping[str, np.ndarray] = NOTHING) -> str:
    """Returns a sentence on the elementwise function by which each side computed its array from
    one or two given ones, or the sum of two around them; empty if neither is recognized.
    """
    with np.errstate(all="ignore"):
        found = _found(itertools.chain(_feed_forward(given), _sums(around)), sides)
    return _sentence(found) if any(found) else ""


def routed(outputs: Iterable[np.ndarray], left: np.ndarray, right: np.ndarray) -> str:
    """Returns which side weights experts by the softmax over those that are chosen, if the other
    side does so by the softmax over all; empty if the sums of these weights do not tell.

    outputs: the outputs of earlier layers, including the router's logits.
    """
    one, other = (array.reshape(-1, array.shape[-1]).astype(np.float64) for array in (left, right))
    factors = (one * other).sum(1) / (other * other).sum(1)
    for logits in outputs:
        rows = logits.reshape(-1, logits.shape[-1]).astype(np.float64) if logits.ndim > 1 else logits
        if rows.ndim != 2 or len(rows) != len(factors) or not 2 < rows.shape[1] <= EXPERTS:
            continue
        sums = np.cumsum(-np.sort(-softmax.softmax(rows)), axis=1)
        for count, total in enumerate(sums.T[:-1], start=1):
            for which, other_side, factor in (("left", "right", total), ("right", "left", 1 / total)):
                if np.allclose(factors, factor, rtol=EXACT):
                    return (f"the {which} weights {count} experts by the softmax over all {rows.shape[1]}, "
                            f"the {other_side} by the softmax over these {count}")  # fmt: skip
    return ""


def _found(readings: Iterable[tuple[Reading, np.ndarray]], sides: Sequence[np.ndarray]) -> list[Reading | None]:
    """Returns the closest reading of each side; None unless it reproduces the numbers."""
    found: list[Reading | None] = [None, None]
    if any(side.dtype.kind != "f" for side in sides):
        return found
    least = [CLOSE * float(np.abs(side).max(initial=0.0)) for side in sides]
    for reading, array in readings:
        for which, side in enumerate(sides):
            # a side's heads may precede its positions
            orders = [array] if array.ndim < 4 or side.ndim < 4 else [array, array.swapaxes(1, 2)]
            fitting = [one.reshape(side.shape) for one in orders if one.size == side.size]
            error = min((float(np.abs(one - side).max()) for one in fitting), default=least[which])
            if error < least[which]:
                found[which], least[which] = reading, error / 2  # on a tie, the first reading wins
    return found


def _sentence(found: Sequence[Reading | None]) -> str:
    left, right = found
    if left and right:
        names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
        both = [", ".join(one[name] for name in names if name in one) for one in (left, right)]
        return f"the left has {both[0]}, the right {both[1]}" if names else ""
    which, other, one = ("right", "left", right) if right else ("left", "right", left)
    assert one is not None
    return f"the {which} has {', '.join(one.values())}, the {other} {UNKNOWN}"


def _attention(
    given: Mapping[str, np.ndarray], words: Mapping[str, Sequence[str]], sides: Sequence[np.ndarray], bases: Iterable[float]
) -> Iterator[tuple[Reading, np.ndarray]]:
    """Yields all readings of attention over the last queries, keys and values, fused or not."""
    last: dict[str, np.ndarray] = {}
    for path, array in given.items():
        last |= {name: array for name in PROJECTIONS if name in words[path]}
    fused = [*given.values()][-1:]
    if not last and fused and fused[0].ndim == sides[0].ndim == 3 and fused[0].shape[-1] == len(PROJECTIONS) * sides[0].shape[-1]:
        last = dict(zip(PROJECTIONS, np.split(fused[0], len(PROJECTIONS), axis=-1), strict=True))
    if len(last) < len(PROJECTIONS) or any(array.ndim not in (3, 4) for array in last.values()):
        return
    for q_bthk, k_bsgk, v_bsge in _by_heads(*(last[name].astype(np.float64) for name in PROJECTIONS)):
        (heads, size), groups = q_bthk.shape[2:], k_bsgk.shape[2]
        if q_bthk[..., 0].size * k_bsgk.shape[1] > LARGEST:
            continue
        for (placed, turned), (shared, spread) in itertools.product(_positions(q_bthk, k_bsgk, bases), _groups(heads, groups)):
            for causal, (scale, scaled) in itertools.product((True, False), _scales(size, heads)):
                told = {"positions": placed, "groups": shared, "mask": "a causal mask" if causal else "no mask", "scale": scaled}
                own = Heads(turned[0], spread(turned[1]), spread(v_bsge))
                found = attention.scaled_dot_product_attention(own, scores=Scores(scale, causal=causal))
                yield {name: text for name, text in told.items() if text}, found


def _by_heads(*projected: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields queries `b t h k`, keys `b s g k` and values `b s g e` for every possible number of
    heads; arrays with four axes are read as `b t h k` and as `b h t k`.
    """
    read = ([array] if array.ndim < 4 else [array, array.swapaxes(1, 2)] for array in projected)
    for query, key, value in itertools.product(*read):
        width = query.shape[-1]
        divisors = [count for count in range(1, width + 1) if width % count == 0 and width // count > 1]
        for heads in [query.shape[2]] if query.ndim == 4 else divisors:
            q_bthk = query.reshape(*query.shape[:2], heads, -1)
            groups = key.shape[2] if key.ndim == 4 else max(key.shape[-1] // q_bthk.shape[-1], 1)
            if heads % groups or key[0, 0].size % groups or value[0, 0].size % groups or (value.ndim == 4 and value.shape[2] != groups):
                continue
            k_bsgk, v_bsge = (array.reshape(*array.shape[:2], groups, -1) for array in (key, value))
            if k_bsgk.shape[:2] == v_bsge.shape[:2] and (len(q_bthk), q_bthk.shape[-1]) == (len(k_bsgk), k_bsgk.shape[-1]):
                yield q_bthk, k_bsgk, v_bsge


def _positions(query: np.ndarray, key: np.ndarray, bases: Iterable[float]) -> Iterator[tuple[str, Sequence[np.ndarray]]]:
    """Yields queries and keys without and with rotary positions."""
    yield "no rotation", (query, key)
    size = query.shape[-1]
    if size % 2 or query.shape[1] != key.shape[1]:
        return
    at = np.arange(query.shape[1], dtype=np.float64)[:, None]
    for base in dict.fromkeys((*bases, *BASES)):
        angles = at * rotary.rotary_frequencies(size, base, RotaryScaling(), query.shape[1])
        turned = rotary.Rotation(np.cos(angles)[None], np.sin(angles)[None])
        for layout, name in (("halves", "the halves of a head"), ("interleaved", "neighboring features")):
            yield f"rotary positions that pair {name}, with base {base:g}", [rotary.rotated(x, turned, layout) for x in (query, key)]
        mixed = [np.repeat(angle, 2, axis=-1)[..., None, :] for angle in turned]
        text = f"rotary positions that pair the halves of a head with the frequencies of neighboring features, with base {base:g}"
        yield text, [x * mixed[0] + np.concatenate([-x[..., size // 2 :], x[..., : size // 2]], -1) * mixed[1] for x in (query, key)]


def _groups(heads: int, groups: int) -> list[tuple[str, Any]]:
    """Returns the ways to share key heads among query heads."""
    if groups in (1, heads):
        return [("", lambda array: array)]
    return [
        ("repeated key heads", lambda array: array),
        ("tiled key heads", lambda array: np.tile(array, (1, 1, heads // groups, 1))),
    ]


def _scales(size: int, heads: int) -> list[tuple[float, str]]:
    found = {(size * heads) ** -0.5: "scores over sqrt(h k)", size**-0.25: "scores over the fourth root of k"}
    return [*(found | {1 / size: "scores over k", 1.0: "scores without a scale", size**-0.5: "scores over sqrt(k)"}).items()]


def _feed_forward(given: Mapping[str, np.ndarray]) -> Iterator[tuple[Reading, np.ndarray]]:
    """Yields elementwise functions of the given arrays, alone and times the other array."""
    names = {path: path.rpartition(".")[2] for path in given}
    names = names if len({*names.values()}) == len(given) else {path: path for path in given}
    for path in [*given][::-1]:
        x = given[path].astype(np.float64)
        active = {f"{name}({names[path]})": feed_forward.activation(x, name) for name in ACTIVATIONS}
        active |= {f"tanh({names[path]})": np.tanh(x), f"sigmoid({names[path]})": 0.5 + 0.5 * np.tanh(0.5 * x)}
        active |= {f"{names[path]} unchanged": x}
        for what, array in active.items():
            yield {"what": what}, array
            for other in given:
                if other != path and given[other].shape == x.shape:
                    yield {"what": f"{what} * {names[other]}"}, array * given[other]


def _sums(around: Mapping[str, np.ndarray]) -> Iterator[tuple[Reading, np.ndarray]]:
    """Yields the arrays, unchanged, and the sums of two."""
    latest = [*around.items()][::-1]
    for path, array in latest:
        yield {"what": f"{path} unchanged"}, array
    for (path, array), (other, addend) in itertools.combinations(latest, 2):
        if array.shape == addend.shape:
            yield {"what": f"{path} + {other}"}, array + addend
