"""Renders attention weights as a self-contained HTML page with every head of every layer."""

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...common import pages

LEVELS = 65535  # a weight is stored as the nearest multiple of 1 / LEVELS
# names in the result of `states` -> title, and the side of the keys
_KINDS = {
    ("encoder", "self_attention"): ("encoder self-attention", "source"),
    ("decoder", "self_attention"): ("decoder self-attention", "target"),
    ("decoder", "cross_attention"): ("decoder cross-attention", "source"),
}


@dataclass(frozen=True)
class AttentionMap:
    """The weights `l h t s` of one attention: layer, head, query token, key token.

    second: where the second of two texts in one row starts; 0 for one text. layers, heads: their
    numbers in the model; counted from 0 if empty.
    """

    name: str
    queries: Sequence[str]
    keys: Sequence[str]
    weights_lhts: np.ndarray
    second: int = 0
    layers: Sequence[int] = ()
    heads: Sequence[int] = ()

    def __post_init__(self) -> None:
        for name, count in zip(("layers", "heads"), self.weights_lhts.shape, strict=False):
            object.__setattr__(self, name, tuple(getattr(self, name)) or tuple(range(count)))


def maps(states: Mapping[str, Any], source: Sequence[str] = (), target: Sequence[str] = (), second: int = 0) -> Iterator[AttentionMap]:
    """Yields the attention maps of one row, from the result of `states` and its tokens' texts.

    second: where the second text of the source starts; 0 for one text.
    """
    for (stack, part), (name, keys) in _KINDS.items():
        weights_lbhts = states.get(stack, {}).get(f"{part}_lbhts")
        if weights_lbhts is not None:
            queries = source if stack == "encoder" else target
            yield AttentionMap(
                name, queries, source if keys == "source" else target, weights_lbhts[:, 0], second if stack == "encoder" else 0
            )


def chosen(shown: Sequence[AttentionMap], layers: Sequence[int] = (), heads: Sequence[int] = ()) -> list[AttentionMap]:
    """Selects layers and heads; empty means all. Raises ValueError on numbers that no map has."""
    for name, numbers, axis in (("layer", layers, 0), ("head", heads, 1)):
        count = max(one.weights_lhts.shape[axis] for one in shown)
        if beyond := [number for number in numbers if not 0 <= number < count]:
            raise ValueError(f"{name}s must be from 0 to {count - 1}; got {beyond[0]}")
    kept = []
    for one in shown:
        rows, columns = ([n for n in own if n in wanted or not wanted] for own, wanted in ((one.layers, layers), (one.heads, heads)))
        if rows and columns:
            weights = one.weights_lhts[np.ix_([one.layers.index(n) for n in rows], [one.heads.index(n) for n in columns])]
            kept.append(replace(one, weights_lhts=weights, layers=tuple(rows), heads=tuple(columns)))
    return kept


def render(model: str, texts: Sequence[str], facts: Mapping[str, str], shown: Sequence[AttentionMap]) -> str:
    """Renders the page. texts: the texts read. facts: further lines of the header, by name.

    Raises ValueError on weights that are not from 0 to 1 or do not fit the tokens.
    """
    return (
        pages.environment(__package__)
        .get_template("attention.html.jinja")
        .render(model=model, texts=texts, facts=facts, maps=shown, levels=LEVELS, data={"levels": LEVELS, "maps": [*map(_data, shown)]})
    )


def _data(one: AttentionMap) -> dict[str, Any]:
    """Returns the data for the page's script."""
    lengths = list(one.weights_lhts.shape[2:])
    if lengths != [len(one.queries), len(one.keys)]:
        raise ValueError(f"weights must be for {len(one.queries)} by {len(one.keys)} tokens; got {' by '.join(map(str, lengths))}")
    return {
        "name": one.name,
        "layers": list(one.layers),
        "heads": list(one.heads),
        "second": one.second,
        "queries": list(one.queries),
        "keys": list(one.keys),
        "weights": packed(one.weights_lhts),
    }


def packed(weights_lhts: np.ndarray) -> str:
    """Encodes weights as multiples of 1 / LEVELS: high bytes, then low bytes, zlib, base64."""
    wide = np.asarray(weights_lhts, np.float64)
    if not ((wide > -0.01) & (wide < 1.01)).all():  # half precision may round 1 up
        raise ValueError(f"attention weights must be numbers from 0 to 1; got {wide.min()} to {wide.max()}")
    level = np.rint(np.clip(wide, 0, 1) * LEVELS).astype(np.uint16)
    planes = np.stack([level >> 8, level & 255]).astype(np.uint8)
    return base64.b64encode(zlib.compress(planes.tobytes())).decode()
