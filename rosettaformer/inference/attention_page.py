"""Attention weights as one self-contained HTML page: every head of every layer as a picture, and one head with its tokens."""

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import pages

__all__ = ["LEVELS", "AttentionMap", "maps", "packed", "render"]

LEVELS = 65535  # a weight is stored as the nearest multiple of 1 / LEVELS
# name in the result of `states` -> name, and which side's tokens are the keys
_KINDS = {
    ("encoder", "self_attention"): ("encoder self-attention", "source"),
    ("decoder", "self_attention"): ("decoder self-attention", "target"),
    ("decoder", "cross_attention"): ("decoder cross-attention", "source"),
}


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one kind of attention, `l h t s`: of layer l and head h, what the query token t takes from the key token s."""

    name: str
    queries: Sequence[str]
    keys: Sequence[str]
    weights_lhts: np.ndarray


def maps(states: Mapping[str, Any], source: Sequence[str] = (), target: Sequence[str] = ()) -> Iterator[AttentionMap]:
    """The attention of one row, from what `reference_numpy.states` and its twins return for it, and the texts of its tokens."""
    for (stack, part), (name, keys) in _KINDS.items():
        weights_lbhts = states.get(stack, {}).get(f"{part}_lbhts")
        if weights_lbhts is not None:
            queries = source if stack == "encoder" else target
            yield AttentionMap(name, queries, source if keys == "source" else target, weights_lbhts[:, 0])


def render(model: str, texts: Sequence[str], facts: Mapping[str, str], shown: Sequence[AttentionMap]) -> str:
    """The page. model: its name. texts: what was read. facts: what else stands in the head, by its name.

    Raises ValueError on weights that are no numbers from 0 to 1, or not of those tokens.
    """
    return (
        pages.environment(__package__)
        .get_template("attention.html.jinja")
        .render(model=model, texts=texts, facts=facts, maps=shown, levels=LEVELS, data={"levels": LEVELS, "maps": [*map(_data, shown)]})
    )


def _data(one: AttentionMap) -> dict[str, Any]:
    """What the page's script reads."""
    layers, heads, *lengths = one.weights_lhts.shape
    if lengths != [len(one.queries), len(one.keys)]:
        raise ValueError(f"weights must be of {len(one.queries)} by {len(one.keys)} tokens; got {' by '.join(map(str, lengths))}")
    return {
        "name": one.name,
        "layers": layers,
        "heads": heads,
        "queries": list(one.queries),
        "keys": list(one.keys),
        "weights": packed(one.weights_lhts),
    }


def packed(weights_lhts: np.ndarray) -> str:
    """base64 of zlib of the weights as multiples of 1 / LEVELS: the high bytes of all of them, then the low bytes."""
    wide = np.asarray(weights_lhts, np.float64)
    if not ((wide > -0.01) & (wide < 1.01)).all():  # half precision rounds a weight of 1 up
        raise ValueError(f"attention weights must be numbers from 0 to 1; got {wide.min()} to {wide.max()}")
    level = np.rint(np.clip(wide, 0, 1) * LEVELS).astype(np.uint16)
    planes = np.stack([level >> 8, level & 255]).astype(np.uint8)
    return base64.b64encode(zlib.compress(planes.tobytes(), 9)).decode()
