"""Traces the named axes of torch tensors through a model, to find channels and spatial axes."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

PROBED = ("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "mean", "sum", "amax", "amin", "__getitem__", "unsqueeze",
          "squeeze", "t", "select", "narrow", "__get__")  # fmt: skip
RESHAPED = ("flatten", "reshape", "view", "unflatten")
SPACE = {1: "t", 2: "hw", 3: "zhw"}
PRIMES = (2, 3, 5, 7, 11, 13)
Tag = list[list[tuple[str, int]]]


class Followed(TorchFunctionMode):
    """Tags every tensor whose axes follow from the inputs, convolutions and pools."""

    def __init__(self, inputs: Sequence[tuple[torch.Tensor, Sequence[str]]]) -> None:
        super().__init__()
        self._tags: dict[int, tuple[torch.Tensor, Tag]] = {}  # keep tensors alive, since ids are reused
        for tensor, axes in inputs:
            if len(axes) == tensor.ndim:
                self._put(tensor, [[(name, size)] for name, size in zip(axes, tensor.shape, strict=True)])

    def of(self, tensor: torch.Tensor) -> Tag | None:
        found = self._tags.get(id(tensor))
        return found[1] if found else None

    def assume(self, tensor: torch.Tensor, convolved: bool) -> None:
        """Assumes the usual axes for the input of a spatial layer, if they are unknown.

        convolved: the second axis is channels, whatever was declared.
        """
        tag = self.of(tensor)
        if (names := _spatial(tensor, tag if convolved else None)) and (tag is None or convolved):
            self._put(tensor, [[(name, size)] for name, size in zip(names, tensor.shape, strict=True)])

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        values = [item for value in args for item in (value if isinstance(value, (tuple, list)) else [value])]
        given = [value for value in values if isinstance(value, torch.Tensor)]
        for output in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(output, torch.Tensor) and given and output.dtype.is_floating_point:
                self._follow(getattr(function, "__name__", ""), given, args, kwargs or {}, output, function)
        return result

    def _put(self, tensor: torch.Tensor, tag: Tag | None) -> None:
        if tag is None:
            self._tags.pop(id(tensor), None)
        else:
            self._tags[id(tensor)] = (tensor, tag)

    def _follow(self, name: str, given: list[torch.Tensor], args: Any, kwargs: Any, output: torch.Tensor, function: Any) -> None:
        first = given[0]
        tag = self.of(first)
        if name.startswith("conv") or ("pool" in name and tag is None):
            if names := _spatial(first, tag):
                self._put(output, [[(axis, size)] for axis, size in zip(names, output.shape, strict=True)])
        elif name == "einsum":
            self._put(output, None)
        elif name == "embedding":
            index = self.of(given[0])
            self._put(output, None if index is None else [*index, [("c", output.shape[-1])]])
        elif tag is None or output.ndim == 0:
            same = [self.of(other) for other in given[1:] if other.shape == output.shape]
            self._put(output, next(filter(None, same), None))
        elif name in ("linear", "matmul", "__matmul__", "addmm") and output.shape[:-1] == first.shape[:-1]:
            self._put(output, [*tag[:-1], [("c", output.shape[-1])]])
        elif name in PROBED:
            self._put(output, _probed(function, tag, args, kwargs, output))
        elif name in RESHAPED:
            self._put(output, _reshaped(tag, output.shape))
        elif output.ndim == len(tag):
            self._put(output, _resized(tag, output.shape))
        else:
            self._put(output, None)


def _spatial(tensor: torch.Tensor, tag: Tag | None) -> list[str]:
    """Returns the axes of a convolution's input, keeping known names; empty for a wrong rank."""
    if tensor.ndim - 2 not in SPACE:
        return []
    usual = ["b", "c", *SPACE[tensor.ndim - 2]]
    known = [group[0][0] if len(group) == 1 else "" for group in tag or [[]] * tensor.ndim]
    return [name if name and usual[axis] != "c" != name else usual[axis] for axis, name in enumerate(known)]


def _probed(function: Any, tag: Tag, args: Any, kwargs: Any, output: torch.Tensor) -> Tag | None:
    """Returns the axes of the output, found by calling the function on distinct sizes."""
    if len(tag) > len(PRIMES):
        return None
    try:
        with torch.no_grad():
            result = function(torch.zeros(PRIMES[: len(tag)]), *args[1:], **kwargs)
    except Exception:  # an index beyond the probe's sizes
        return None
    result = result[0] if isinstance(result, (tuple, list)) else result
    if result.ndim != output.ndim:
        return None
    return _resized([tag[PRIMES.index(size)] if size in PRIMES else [] for size in result.shape], output.shape)


def _resized(tag: Tag, shape: Sequence[int]) -> Tag | None:
    """Returns the axes with these sizes; None if an unnamed axis of length 1 has grown."""
    if any(not group and size != 1 for group, size in zip(tag, shape, strict=True)):
        return None
    counts = [math.prod(own for _, own in group) for group in tag]
    each = zip(tag, counts, shape, strict=True)
    return [group if count == size else [(group[0][0], size)] for group, count, size in each]


def _reshaped(tag: Tag, shape: Sequence[int]) -> Tag | None:
    """Returns the axes regrouped to these sizes, in the same order."""
    atoms = [atom for group in tag for atom in group if atom[1] != 1]
    found: Tag = []
    for size in shape:
        group, have = [], 1
        while have < size and atoms:
            group.append(atoms.pop(0))
            have *= group[-1][1]
        if have != size:
            return None
        found.append(group)
    return None if atoms else found
