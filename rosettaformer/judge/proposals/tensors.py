"""A module's parameter tensors, and the axes they can have: orders and groupings of letters."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Leaf:
    """A parameter: its native name and shape.

    first: which axes come first, "out" (outputs) or "in" (inputs); "" if unknown.
    """

    path: str
    shape: tuple[int, ...]
    first: str = ""

    @property
    def parent(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def is_vector(self) -> bool:
        """Whether at most one of its axes is longer than 1."""
        return max(self.shape, default=0) == math.prod(self.shape)


def layouts(
    axes: str, outputs: str, shape: Sequence[int], sizes: Mapping[str, int], first: str = "", part: tuple[int, int] = (0, 1)
) -> list[str]:
    """Returns the possible native axes of a parameter in a tensor of that shape, likeliest first.

    axes: `d h k`. outputs: the output letters, `h k`. first: "out" or "in" if known. part: the
    parameter is part i of n of the tensor. Only common orders are tried: inputs and outputs each
    contiguous and in order, axes of size 1 at either end. If none gives the shape, all orders are
    tried.
    """
    index, count = part
    letters = axes.split()
    ins, outs = [one for one in letters if one not in outputs.split()], outputs.split()
    sized = dict(sizes)
    tokens = [f"{index}/{count}"] if count > 1 else []
    if tokens:
        sized[tokens[0]] = count
    usual = []
    for placed in _placed(outs, tokens):
        orders = {"out": [placed + ins], "in": [ins + placed], "": [placed + ins, ins + placed]}[first]
        for order in orders:
            usual += [text for text in _grouped(order, shape, sized) if text not in usual]
    if usual or first:
        return usual
    others = itertools.permutations(letters + tokens)
    return list(dict.fromkeys(text for order in others for text in _grouped(list(order), shape, sized)))


def _placed(outs: list[str], tokens: list[str]) -> list[list[str]]:
    """Returns the output orders with the part's axis inserted, outside or inside heads."""
    return [[*outs[:place], *tokens, *outs[place:]] for place in range(len(outs) if tokens else 1)]


def _grouped(order: list[str], shape: Sequence[int], sizes: Mapping[str, int]) -> Iterator[str]:
    """Yields the ways to merge adjacent letters into axes of the shape."""
    wanted = [size for size in shape if size != 1]
    lengths = [list(range(1, len(order) + 1))] * len(wanted)
    for cut in itertools.product(*lengths):
        if sum(cut) != len(order):
            continue
        groups, start = [], 0
        for length in cut:
            groups.append(order[start : start + length])
            start += length
        if all(math.prod(sizes[letter] for letter in group) == size for group, size in zip(groups, wanted, strict=True)):
            texts = iter([f"({' '.join(group)})" if len(group) > 1 or "/" in group[0] else group[0] for group in groups])
            yield " ".join("1" if size == 1 else next(texts) for size in shape)
