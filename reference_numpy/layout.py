"""Tensor layouts: the same tensor under another name, with its axes in another order.

A framework's layout is a table of rows (end of canonical name, end of native name, native axes).
Both directions of the conversion follow from the table and the canonical axes in `parameters`. A
tensor that is one part of a fused native tensor has `i/n` in its axes, for part i of n:
`d (0/3 h k)` is the query kernel in GPT-2's c_attn, `(h 0/3 k) d` the one in GPT-NeoX. A kernel
shared by all heads, each applying it to its own slice of the width, has axis `i` instead of `d h`:
it is the block of every head, and the canonical tensor is zero outside the blocks.
"""

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

from . import parameters
from .arrays import Array, Tree
from .config import TransformerConfig as Config
from .presets import preset

__all__ = [
    "CANONICAL",
    "Row",
    "Table",
    "fitting",
    "from_native",
    "native",
    "rearranged",
    "relayout",
    "renamed",
    "shape",
    "to_native",
]

Row = tuple[str, str, str]
Table = tuple[Row, ...]
_PART = re.compile(r"(\d)/(\d)")  # in native axes: part i of n
# modules with canonical names and axes, with every optional bias and norm
_FULL = preset(
    "tiny",
    attention_bias=True,
    attention_sinks="all",
    output_bias=True,
    gated_feed_forward=True,
    experts=1,
    experts_per_token=1,
    expert_width=1,
    shared_width=1,
    shared_gate=True,
    router_bias=True,
    selection_bias=True,
)
CANONICAL: Table = tuple(
    (name, name, letters)
    for component in (
        "embedding",
        "position_embedding",
        "segment_embedding",
        "multi_head_attention",
        "feed_forward",
        "mixture_of_experts",
        "router",
        "layer_norm",
        "logits",
        "pooler",
        "classifier",
        "masked_language_head",
    )
    for name, letters in dict.fromkeys(
        row
        for norm in ("head", "width")
        for row in parameters.axes(_FULL.replace(query_key_norm=norm), component).items()
    )
)


def relayout(array: Array, from_axes: str, to_axes: str, sizes: Mapping[str, int]) -> Array:
    """Rearranges the axes of a tensor.

    Letters may be reordered, and grouped in brackets into one axis. A digit is an axis of that
    size; a 1 may occur on one side only. `relayout(kernel, "d h k", "(h k) d", sizes)` gives the
    weight of a linear layer that stores outputs before inputs; swapping the strings inverts it.
    Raises ValueError unless the shape matches `from_axes` and `sizes`.
    """
    return np.ascontiguousarray(rearranged(array, from_axes, to_axes, sizes))


def rearranged(array: Array, from_axes: str, to_axes: str, sizes: Mapping[str, int]) -> Array:
    """Like `relayout`, but returns a view if NumPy can make one."""
    source, target = _groups(from_axes), _groups(to_axes)
    letters = [letter for group in source for letter in group if letter != "1"]
    if _letters(from_axes) != _letters(to_axes):
        raise ValueError(f"both layouts must have the same axes; got {from_axes!r} and {to_axes!r}")
    declared = shape(from_axes, sizes)
    if array.shape != declared:
        raise ValueError(f"axes {from_axes!r} must have shape {declared}; got {array.shape}")
    order = [letters.index(letter) for group in target for letter in group if letter != "1"]
    unfolded = array.reshape([_size(letter, sizes) for letter in letters]).transpose(order)
    return unfolded.reshape(shape(to_axes, sizes))


def renamed(**names: str) -> Table:
    """Returns the canonical table with other native names, such as `renamed(output="out")`."""
    return tuple(
        (end, ".".join(names.get(part, part) for part in end.split(".")), axes)
        for end, _, axes in CANONICAL
    )


def native(name: str, axes: str, table: Table) -> tuple[str, str]:
    """Returns the native name and axes of a canonical name and its axes; the name's prefix is kept.

    The longest row that matches the end of the name and the axes wins: `output.kernel` with `h e d`
    (attention) and with `f d` (feed-forward) are different rows. Raises ValueError if none matches.
    """
    row = fitting(name, axes, table)
    if row is None:
        raise ValueError(f"no row of the weight table fits {name} with axes {axes!r}")
    return name.removesuffix(row[0]) + row[1], row[2]


def fitting(name: str, axes: str, table: Table) -> Row | None:
    """Returns the longest row that matches the end of the name and the axes."""
    slice_of = " ".join(axes.split()[:2]) if axes.startswith(("d h", "d g")) else "i"
    rows = [
        row
        for row in table
        if f".{name}".endswith(f".{row[0]}")
        and _letters(_PART.sub("", row[2]).replace("i", slice_of)) == _letters(axes)
    ]
    return max(rows, key=lambda row: len(row[0]), default=None)


def to_native(
    tensors: Tree, table: Table, config: Config, component: str = "transformer"
) -> dict[str, Array]:
    """Converts canonical parameters to native names and layouts.

    Raises ValueError as `parameters.match` does, if parts of a fused tensor are missing or differ
    in shape, and if heads that must share a kernel do not.
    """
    parameters.match(tensors, parameters.shapes(config, component))
    parts: dict[str, dict[str, Array]] = {}  # native name -> its parts
    whole = {}
    for name, letters, native_name, native_axes, sizes in _rows(table, config, component):
        array, part = np.asarray(tensors[name]), _PART.search(native_axes)
        if not part:
            kernel = _one_block(name, array, sizes["i"]) if "i" in native_axes else array
            axes = _of_block(letters, native_axes)
            whole[native_name] = relayout(kernel, axes, native_axes, sizes)
            continue
        own = parts.setdefault(native_name, {})
        own[part[0]] = array
        if len(own) == int(part[2]) and len({array.shape for array in own.values()}) == 1:
            together, axes = np.stack([own[which] for which in sorted(own)]), f"{part[2]} {letters}"
            joined = _PART.sub(part[2], native_axes)
            whole[native_name] = relayout(together, axes, joined, sizes)
    for native_name, own in parts.items():
        if native_name not in whole:
            got = ", ".join(f"{which} of shape {array.shape}" for which, array in own.items())
            raise ValueError(f"{native_name} must have all of its parts, of one shape; got {got}")
    return whole


def from_native(
    tensors: Tree, table: Table, config: Config, component: str = "transformer"
) -> dict[str, Array]:
    """Converts native parameters to canonical ones, the inverse of `to_native`.

    A kernel shared by all heads becomes the block `i k` of one head. Raises ValueError as
    `parameters.match` does.
    """
    rows = list(_rows(table, config, component))
    expected = {}
    for _, _, native_name, native_axes, sizes in rows:
        expected[native_name] = shape(_PART.sub(r"\2", native_axes), sizes)
    parameters.match(tensors, expected)
    result = {}
    for name, letters, native_name, native_axes, sizes in rows:
        array, part = np.asarray(tensors[native_name]), _PART.search(native_axes)
        if part:
            joined, axes = _PART.sub(part[2], native_axes), f"{part[2]} {letters}"
            result[name] = relayout(array, joined, axes, sizes)[int(part[1])].copy()
        else:
            result[name] = relayout(array, native_axes, _of_block(letters, native_axes), sizes)
    return result


def _rows(
    table: Table, config: Config, component: str
) -> Iterator[tuple[str, str, str, str, dict[str, int]]]:
    shapes = parameters.shapes(config, component)
    for name, letters in parameters.axes(config, component).items():
        sizes = dict(zip(letters.split(), shapes[name], strict=True))
        sizes["i"] = sizes.get("d", 0) // sizes.get("g", sizes.get("h", 1))
        yield name, letters, *native(name, letters, table), sizes


def _one_block(name: str, kernel_dhk: Array, size: int) -> Array:
    """Returns the block `i k` that every head applies to its slice; ValueError if there is none."""
    block, heads = kernel_dhk[:size, 0], kernel_dhk.shape[1]
    slices = [kernel_dhk[head * size : (head + 1) * size, head] for head in range(heads)]
    same = all(np.array_equal(block, own) for own in slices)
    if not same or np.count_nonzero(kernel_dhk) != heads * np.count_nonzero(block):
        wanted = "the same block for every head, applied only to the head's slice of the width"
        raise ValueError(f"{name} must be {wanted}; got different kernels")
    return block


def _of_block(letters: str, native_axes: str) -> str:
    """Returns the canonical axes, or those of a block if the native tensor is one."""
    return f"i {letters.split()[-1]}" if "i" in native_axes else letters


def shape(layout: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the shape of a tensor with these axes."""
    return tuple(math.prod(_size(letter, sizes) for letter in group) for group in _groups(layout))


def _size(letter: str, sizes: Mapping[str, int]) -> int:
    return int(letter) if letter.isdigit() else sizes[letter]


def _groups(layout: str) -> list[list[str]]:
    return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\w", layout)]


def _letters(layout: str) -> list[str]:
    return sorted(letter for group in _groups(layout) for letter in group if letter != "1")
