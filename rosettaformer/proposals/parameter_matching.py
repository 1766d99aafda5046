"""Matches parameters to canonical ones: which tensor of a module is which, by names, by shapes and by structure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..conformance.reference.components import model_of
from .model_parts import ModelMatching
from .parameter_leaves import Leaf
from .parts import Part


@dataclass
class Match:
    """A model's parts; what has no counterpart; what its tensors show: fields of the config, and `model`, its component; and output biases
    of attentions whose other projections have none.
    """

    root: Part
    rest: list[Leaf]
    shown: dict[str, Any]
    unpaired: list[Leaf]


def matched(component: str, leaves: Sequence[Leaf], sizes: Mapping[str, int]) -> Match:
    """Returns the meaning of each parameter of a component's module. sizes: of every letter but v, and `v` and `w` of the source's and the
    target's vocabulary.
    """
    work = ModelMatching(list(leaves), sizes)
    root = Part(model_of(component), "", "")
    getattr(work, f"_{root.component}", work.nothing)(root)
    return Match(root, work.left, work.shown, work.unpaired)
