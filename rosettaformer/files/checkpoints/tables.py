"""Tables that map native tensors to canonical ones, and the conversion in both directions.

A native tensor is a stack of one or more canonical tensors along one axis. For example,
torch.nn.Transformer stacks its query, key and value kernels into one input projection.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from reference_numpy import TransformerConfig, layout, parameters


class Part(NamedTuple):
    """A canonical tensor in a native one: its name, with * for the layer, and its axes there."""

    name: str
    axes: str


class Row(NamedTuple):
    """A native tensor: its name, with * for the layer, its parts, and the axis that stacks them."""

    name: str
    parts: tuple[Part, ...]
    axis: int = 0


Table = tuple[Row, ...]


class Native(NamedTuple):
    """A native tensor of one model: its parts with their canonical axes and sizes, and its axis."""

    name: str
    parts: tuple[tuple[Part, str, dict[str, int]], ...]
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        shapes = [layout.shape(part.axes, sizes) for part, _, sizes in self.parts]
        first = list(shapes[0])
        first[self.axis] = sum(shape[self.axis] for shape in shapes)
        return tuple(first)


NORM: Table = (Row("weight", (Part("scale", "d"),)), Row("bias", (Part("offset", "d"),)))


def dense(native: str, canonical: str, kernel: str, bias: str) -> Table:
    """Returns the rows of a linear layer. kernel, bias: the axes of its tensors."""
    return Row(f"{native}.weight", (Part(f"{canonical}.kernel", kernel),)), Row(f"{native}.bias", (Part(f"{canonical}.bias", bias),))


def within(native: str, canonical: str, rows: Table) -> Table:
    """Returns the rows with both names prefixed."""
    return tuple(
        Row(f"{native}.{end}", tuple(Part(f"{canonical}.{name}", axes) for name, axes in parts), axis) for end, parts, axis in rows
    )


def natives(table: Table, config: TransformerConfig) -> Iterator[Native]:
    """Yields the native tensors of a model; tied tensors appear under each of their names."""
    untied = config.replace(share_embeddings=False, tie_logits=False)
    axes, shapes = parameters.axes(untied), parameters.shapes(untied)
    sizes = {name: dict(zip(letters.split(), shapes[name], strict=True)) for name, letters in axes.items()}
    for row in table:
        layers = config.encoder_layers if row.parts[0].name.startswith("encoder") else config.decoder_layers
        for index in range(layers if "*" in row.name else 1):
            parts = [Part(part.name.replace("*", str(index)), part.axes) for part in row.parts]
            if parts[0].name in axes:
                found = tuple((part, axes[part.name], sizes[part.name]) for part in parts)
                yield Native(row.name.replace("*", str(index)), found, row.axis)


def split(native: Native, array: np.ndarray) -> dict[str, np.ndarray]:
    """Splits a native tensor into canonical ones, as views where NumPy allows it."""
    tensors, start = {}, 0
    for part, axes, sizes in native.parts:
        stop = start + layout.shape(part.axes, sizes)[native.axis]
        piece = array[(slice(None),) * native.axis + (slice(start, stop),)]
        tensors[part.name] = layout.rearranged(piece, part.axes, axes, sizes)
        start = stop
    return tensors


def merged(native: Native, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Stacks canonical tensors into a native one, the inverse of `split`; as a view if possible."""
    pieces = [layout.rearranged(tensors[part.name], axes, part.axes, sizes) for part, axes, sizes in native.parts]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, native.axis)
