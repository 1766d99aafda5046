"""The tensors of a module's parameters, and the axes that one may have: every order and grouping of letters that gives its shape."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Leaf:
    """A parameter: its native name and shape.

    first: which of its axes come first, "out" (outputs) or "in" (inputs); "" if that is open.
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
    """Returns the native axes that a parameter with these canonical axes may have in a tensor of that shape, the most usual first.

    axes: `d h k`. outputs: its letters that are outputs, `h k`. first: "out" or "in", if it is known which of them come first. part: the
    parameter is part i of n of the tensor. Only orders in use are included: inputs and outputs are each contiguous, in their order, an axis
    of size 1 at the end or the beginning; if none of these has the shape, any order that has it.
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
    """Returns the outputs with the part inserted: parts beside each other, and within each head."""
    return [[*outs[:place], *tokens, *outs[place:]] for place in range(len(outs) if tokens else 1)]


def _grouped(order: list[str], shape: Sequence[int], sizes: Mapping[str, int]) -> Iterator[str]:
    """Yields the ways to join neighbours of the order into axes that have the shape."""
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
