"""Layouts: the same tensor under another name and with its axes in another order.

A framework's layout is a table of rows (end of the canonical name, end of the native name, native
axes); both directions of the conversion follow from it and from the canonical axes in `parameters`.
A tensor that is part of a native one has `i/n` in its axes, part i of n that lie beside each other:
`d (0/3 h k)` is the query kernel in GPT-2's c_attn, `(h 0/3 k) d` the one in GPT-NeoX. A kernel
that all heads share, each for its own slice of the width, has that slice's axis `i` in place of `d
h`: it is the block of every head, and the canonical tensor is zero outside the blocks.
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
_PART = re.compile(r"(\d)/(\d)")  # in native axes: which part of how many
# modules with canonical names and axes, with every bias and norm that a config may have
_FULL = preset("tiny", attention_bias=True, output_bias=True, gated_feed_forward=True)
CANONICAL: Table = tuple(
    (name, name, letters)
    for component in (
        "embedding",
        "position_embedding",
        "segment_embedding",
        "multi_head_attention",
        "feed_forward",
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
    """The same tensor with other axes.

    Letters may be reordered, and grouped in brackets into one axis. A digit is an axis of that
    size; a 1 may stand on one side only. `relayout(kernel, "d h k", "(h k) d", sizes)` is the
    weight of a linear layer that stores outputs before inputs; exchanging the two strings goes
    back. Raises ValueError unless the shape is the one that `from_axes` and `sizes` declare.
    """
    return np.ascontiguousarray(rearranged(array, from_axes, to_axes, sizes))


def rearranged(array: Array, from_axes: str, to_axes: str, sizes: Mapping[str, int]) -> Array:
    """`relayout` as a view of the array, where NumPy can make one."""
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
    """The canonical table with other native names for these parts: `renamed(output="out")`."""
    return tuple(
        (end, ".".join(names.get(part, part) for part in end.split(".")), axes)
        for end, _, axes in CANONICAL
    )


def native(name: str, axes: str, table: Table) -> tuple[str, str]:
    """The native name and axes of a canonical name and its axes; the start of the name stays.

    The longest row that ends the name and has the same axes decides: `output.kernel` is another row
    with `h e d` (attention) than with `f d` (feed-forward). Raises ValueError if no row fits.
    """
    row = fitting(name, axes, table)
    if row is None:
        raise ValueError(f"no row of the weight table fits {name} with axes {axes!r}")
    return name.removesuffix(row[0]) + row[1], row[2]


def fitting(name: str, axes: str, table: Table) -> Row | None:
    """The longest row that ends the name and has the same axes."""
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
    """Canonical parameters under their native names, in their native layouts.

    Raises ValueError as `parameters.match`, if a native tensor lacks a part or its parts differ in
    shape, and if heads that share a kernel have one each.
    """
    parameters.match(tensors, parameters.shapes(config, component))
    parts: dict[str, dict[str, Array]] = {}  # of each native tensor, by which part it is
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
    """Canonical parameters from native ones, the inverse of `to_native`.

    A kernel that all heads share becomes the block of one, `i k`. Raises ValueError as
    `parameters.match`.
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
    """The block `i k` that every head has for its slice of the width; ValueError without one."""
    block, heads = kernel_dhk[:size, 0], kernel_dhk.shape[1]
    slices = [kernel_dhk[head * size : (head + 1) * size, head] for head in range(heads)]
    same = all(np.array_equal(block, own) for own in slices)
    if not same or np.count_nonzero(kernel_dhk) != heads * np.count_nonzero(block):
        wanted = "one block for every head, which reads its slice of the width alone"
        raise ValueError(f"{name} must be {wanted}; got a kernel of each")
    return block


def _of_block(letters: str, native_axes: str) -> str:
    """The canonical axes; if the native tensor is the block of every head, the axes of a block."""
    return f"i {letters.split()[-1]}" if "i" in native_axes else letters


def shape(layout: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor with these axes."""
    return tuple(math.prod(_size(letter, sizes) for letter in group) for group in _groups(layout))


def _size(letter: str, sizes: Mapping[str, int]) -> int:
    return int(letter) if letter.isdigit() else sizes[letter]


def _groups(layout: str) -> list[list[str]]:
    return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\w", layout)]


def _letters(layout: str) -> list[str]:
    return sorted(letter for group in _groups(layout) for letter in group if letter != "1")
