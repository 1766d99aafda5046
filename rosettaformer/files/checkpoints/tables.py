"""Tables of native tensors: each is a stack, along one of its axes, of one or more canonical ones.

The packed input projection of torch.nn.Transformer is the stack of the query, key and value kernels. Both directions of the conversion
follow from the table and from the canonical axes.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from reference_numpy import TransformerConfig, layout, parameters


class Part(NamedTuple):
    """A canonical tensor within a native one: its name, in which * stands for the number of a layer, and its axes there."""

    name: str
    axes: str


class Row(NamedTuple):
    """A native tensor: its name, in which * stands for the number of a layer; its parts, and the axis along which they are stacked."""

    name: str
    parts: tuple[Part, ...]
    axis: int = 0


Table = tuple[Row, ...]


class Native(NamedTuple):
    """A native tensor of one model: its parts with their canonical axes and sizes, and the offset of each."""

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
    """Returns the rows of a linear layer, whose kernel and bias have these axes."""
    return Row(f"{native}.weight", (Part(f"{canonical}.kernel", kernel),)), Row(f"{native}.bias", (Part(f"{canonical}.bias", bias),))


def within(native: str, canonical: str, rows: Table) -> Table:
    """Returns the rows with this prefix before their names."""
    return tuple(
        Row(f"{native}.{end}", tuple(Part(f"{canonical}.{name}", axes) for name, axes in parts), axis) for end, parts, axis in rows
    )


def natives(table: Table, config: TransformerConfig) -> Iterator[Native]:
    """Returns the native tensors of a model of the config, one for each layer, tied ones under each of their names."""
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
    """Returns the canonical tensors of a native one, as views if NumPy can make them."""
    tensors, start = {}, 0
    for part, axes, sizes in native.parts:
        stop = start + layout.shape(part.axes, sizes)[native.axis]
        piece = array[(slice(None),) * native.axis + (slice(start, stop),)]
        tensors[part.name] = layout.rearranged(piece, part.axes, axes, sizes)
        start = stop
    return tensors


def merged(native: Native, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the native tensor of canonical ones, the inverse of `split`; a view if it has one part and NumPy can make it."""
    pieces = [layout.rearranged(tensors[part.name], axes, part.axes, sizes) for part, axes, sizes in native.parts]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, native.axis)
