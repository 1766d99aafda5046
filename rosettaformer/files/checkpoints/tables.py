"""Tables that map native tensors to canonical ones, and the conversion in both directions.

A native tensor is a stack of one or more canonical tensors along one axis. For example,
torch.nn.Transformer stacks its query, key and value kernels into one input projection. Conversely,
a canonical tensor may be a stack of native ones: the kernels of experts are often stored singly.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from reference_numpy import TransformerConfig, layout, parameters


class Part(NamedTuple):
    """A canonical tensor in a native one: its name, with * for the layer, and its axes there."""

    name: str
    axes: str


class Row(NamedTuple):
    """A native tensor: its name, with * for the layer, its parts, and the axis that stacks them.

    A second * in the name is an index on the first axis of the canonical tensors, which the axes of
    the parts then lack. groups: into how many pieces each part is cut; the first pieces of all parts
    are stacked, then the second ones. A number, or the axis of the config whose size it is.
    """

    name: str
    parts: tuple[Part, ...]
    axis: int = 0
    groups: str | int = 1


Table = tuple[Row, ...]


class Native(NamedTuple):
    """A native tensor of one model: its parts with their canonical axes and sizes, and its axis.

    place: its index on the first axis of the canonical tensors; None if it holds them whole.
    """

    name: str
    parts: tuple[tuple[Part, str, dict[str, int]], ...]
    axis: int
    groups: int
    place: int | None

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


class Made(Mapping[str, np.ndarray]):
    """Tensors that are made on access; only the last few are kept."""

    def __init__(self, make: Callable[[str], np.ndarray], names: Iterable[str]) -> None:
        self._make, self._names = lru_cache(maxsize=3)(make), dict.fromkeys(names)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def arrays(parameters: Mapping[str, np.ndarray]) -> Made:
    """Returns the parameters as NumPy arrays, converted on access."""
    return Made(lambda name: np.asarray(parameters[name]), parameters)


def within(native: str, canonical: str, rows: Table) -> Table:
    """Returns the rows with both names prefixed."""
    return tuple(
        row._replace(name=f"{native}.{row.name}", parts=tuple(Part(f"{canonical}.{name}", axes) for name, axes in row.parts))
        for row in rows
    )


def natives(table: Table, config: TransformerConfig) -> Iterator[Native]:
    """Yields the native tensors of a model; tied tensors appear under each of their names."""
    untied = config.replace(share_embeddings=False, tie_logits=False)
    axes, shapes = parameters.axes(untied), parameters.shapes(untied)
    sizes = {name: dict(zip(letters.split(), shapes[name], strict=True)) for name, letters in axes.items()}
    for row in table:
        layers = config.encoder_layers if row.parts[0].name.startswith("encoder") else config.decoder_layers
        for layer in range(layers if "*" in row.name else 1):
            parts = [Part(part.name.replace("*", str(layer)), part.axes) for part in row.parts]
            if parts[0].name not in axes:
                continue
            name = row.name.replace("*", str(layer), 1)
            places = range(shapes[parts[0].name][0]) if "*" in name else (None,)
            lacking = 2 if "*" in name else 0  # the first axis and a space
            found = tuple((part, axes[part.name][lacking:], sizes[part.name]) for part in parts)
            groups = config.sizes[row.groups] if isinstance(row.groups, str) else row.groups
            for place in places:
                yield Native(name.replace("*", str(place)), found, row.axis, groups, place)


def split(native: Native, array: np.ndarray) -> dict[str, np.ndarray]:
    """Splits a native tensor into canonical ones, or one index of them, as views if possible."""
    tensors, start = {}, 0
    grouped = _grouped(native, array)
    for part, axes, sizes in native.parts:
        shape = layout.shape(part.axes, sizes)
        stop = start + shape[native.axis] // native.groups
        piece = grouped[(slice(None),) * (native.axis + 1) + (slice(start, stop),)].reshape(shape)
        tensors[part.name] = layout.rearranged(piece, part.axes, axes, sizes)
        start = stop
    return tensors


def _grouped(native: Native, array: np.ndarray) -> np.ndarray:
    """Splits the axis that stacks the parts into groups and the rows of a group."""
    before, after = array.shape[: native.axis], array.shape[native.axis + 1 :]
    return array.reshape(*before, native.groups, array.shape[native.axis] // native.groups, *after)


def canonical(stored: Iterable[tuple[Native, np.ndarray]]) -> Made:
    """Returns the canonical tensors in native ones: views if possible; stacks are made on access."""
    held: dict[str, list[tuple[Native, np.ndarray]]] = defaultdict(list)
    for native, array in stored:
        for part, _, _ in native.parts:
            held[part.name].append((native, array))

    def make(name: str) -> np.ndarray:
        pieces = [split(native, array)[name] for native, array in held[name]]
        return pieces[0] if held[name][0][0].place is None else np.stack(pieces)

    return Made(make, held)


def merged(native: Native, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Stacks canonical tensors into a native one, the inverse of `split`; as a view if possible."""
    own = () if native.place is None else native.place
    pieces = [layout.rearranged(tensors[part.name][own], axes, part.axes, sizes) for part, axes, sizes in native.parts]
    if len(pieces) == 1:
        return pieces[0]
    grouped = [_grouped(native, piece) for piece in pieces]
    return np.concatenate(grouped, native.axis + 1).reshape(native.shape)
