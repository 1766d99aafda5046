"""Finds transposed and exchanged tensors, untied heads and wrong numbers among the tensors."""

import functools
import hashlib
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import chain, combinations

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.parameters import ties

from ..constants.reading import LIMIT, Constants
from . import words
from .evidence import FLOAT_RTOL, Finding

Arrays = Mapping[str, np.ndarray]
Products = Iterable[tuple[str, np.ndarray]]  # tensors with their places
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_FLOATS = "fV"  # ml_dtypes' dtypes have kind V
RTOL = 1e-2  # for a scaled table in half precision
STEPS = 8  # operations that tell uses of tensors apart: queries reach the scores as a left, keys as a right factor


def findings(config: TransformerConfig, parameters: Arrays, constants: Constants) -> Iterator[Finding]:
    """Yields the tensors that cannot be another way to store the checkpoint.

    If a tensor is in the graph for no layer, it was fused, folded or rounded, and is not reported.
    parameters: the checkpoint's, by canonical name.
    """
    held = {place: value for place, value in constants.values if value.size > 1 and value.dtype.kind in _FLOATS}
    matrices = {place: value for place, value in held.items() if value.ndim == 2}
    graphs = [
        [(place, matrices[place].T if turned else matrices[place]) for place, turned in products if place in matrices]
        for products in constants.products
    ]
    small = {name: array for name, array in parameters.items() if array.size <= LIMIT}  # larger tensors of the graph are not read
    found = _kernels(small, graphs), _exchanged(small, constants), _head(config, small, [*chain(*graphs)]), _other_numbers(small, held)
    for sentence in dict.fromkeys(chain(*found)):
        yield Finding("weights", sentence)


def _named(parameters: Arrays) -> dict[tuple[tuple[int, ...], bytes], str]:
    """Returns the parameters by key. Equal ones, which cannot be told apart, are left out."""
    named = [(_key(matrix), name) for name, array in parameters.items() for matrix in _matrices(array)]
    count = Counter(key for key, _ in named)
    return {key: name for key, name in named if count[key] == 1}


def _matrices(array: np.ndarray) -> list[np.ndarray]:
    """Returns an array as matrices from inputs to outputs, each of which may have several axes."""
    return [array.reshape(math.prod(array.shape[:axis]), -1) for axis in range(1, array.ndim)] or [array]


def _kernels(parameters: Arrays, graphs: Iterable[Products]) -> Iterator[str]:
    """Yields transposed kernels, and kernels of exchanged layers."""
    kernels = _named({name: array for name, array in parameters.items() if name.endswith(".kernel")})
    for products in graphs:
        order: dict[str, list[int]] = {}
        for place, matrix in products:
            name = kernels.get(_key(matrix))
            if name is None and matrix.shape[0] == matrix.shape[1] and (name := kernels.get(_key(matrix.T))):
                yield words.TRANSPOSED.format(place=place, name=name)
            if name and (layer := _LAYER.search(name)) and "cross_attention" not in name:  # those kernels read one memory, in any order
                order.setdefault(_LAYER.sub(".layers.N.", name), []).append(int(layer[1]))
        for kind, layers in order.items():
            if layers != sorted(layers):
                yield words.EXCHANGED.format(kind=kind, layers=", ".join(map(str, layers)))


def _exchanged(parameters: Arrays, constants: Constants) -> Iterator[str]:
    """Yields pairs of tensors of a layer, each of which it uses as other layers use the other."""
    named, readers = _named(parameters), dict[Hashable, list[tuple[str, int, tuple[Hashable, ...]]]]()
    for node in constants.nodes:
        for place, key in enumerate(node.inputs):
            readers.setdefault(key, []).append((node.operation, place, tuple(node.outputs)))

    @functools.cache
    def use(key: Hashable, steps: int) -> int:
        following = (
            (operation, place, *(use(one, steps - 1) for one in outputs if steps)) for operation, place, outputs in readers.get(key, ())
        )
        return hash(tuple(sorted(following)))

    held: dict[str, dict[int, Hashable]] = {}
    for key, value in constants.held.items():
        forms = (value, value.T) if value.size > 1 and value.dtype.kind in _FLOATS else ()
        name = next((named[own] for own in map(_key, forms) if own in named), "")
        if found := _LAYER.search(name):
            held.setdefault(_LAYER.sub(".layers.{}.", name), {})[int(found[1])] = key
    for first, second in combinations(held, 2):
        layers = held[first].keys() & held[second].keys()
        for steps in range(STEPS * bool(layers)):
            pairs = {layer: (use(held[first][layer], steps), use(held[second][layer], steps)) for layer in layers}
            usual = Counter(pairs.values()).most_common(1)[0][0]
            if usual[0] != usual[1]:  # the first step that tells them apart
                for layer in (layer for layer, pair in pairs.items() if pair == usual[::-1]):
                    both = f"{first.format(layer)} and {second.format(layer)}"
                    yield f"{both} are exchanged: other layers use each as this one uses the other"
                break


def _head(config: TransformerConfig, parameters: Arrays, products: Products) -> Iterator[str]:
    """Yields matrices with a tied head's shape that are not its table, even scaled."""
    for name, table in ties(config).items():
        if not name.endswith("logits.kernel") or table not in parameters:
            continue
        tied = parameters[table].T.astype(np.float64)
        for place, matrix in products:
            if matrix.shape == tied.shape:
                factor = (matrix * tied).sum(axis=1, keepdims=True) / np.maximum((tied**2).sum(axis=1, keepdims=True), 1e-30)
                if np.abs(matrix - factor * tied).max() > RTOL * np.abs(matrix).max():
                    yield words.UNTIED.format(place=place, name=name, table=table)


def _other_numbers(parameters: Arrays, held: Arrays) -> Iterator[str]:
    """Yields tensors missing for only some layers, and what the graph has instead.

    A tensor whose numbers are in another order is missing, too.
    """
    dtypes = {value.dtype for value in held.values()}
    own = {name: {_key(one) for dtype in dtypes for one in _forms(array.astype(dtype))} for name, array in parameters.items()}
    inside, every = {_key(value.squeeze()) for value in held.values()}, set().union(*own.values())
    unknown = {place: value for place, value in held.items() if _key(value.squeeze()) not in every}
    absent = [name for name, keys in own.items() if not keys & inside]
    kinds = {_LAYER.sub(".layers.N.", name) for name in own.keys() - {*absent} if _LAYER.search(name)}
    for name in absent:
        places = {place: value for place, value in unknown.items() if value.size == parameters[name].size}
        if _LAYER.sub(".layers.N.", name) in kinds and places:
            related = (relation for place, value in places.items() if (relation := _relation(place, value.squeeze(), parameters[name])))
            instead = next(related, f"{' or '.join([*places][:3])} holds other numbers")
            yield words.LACKS.format(name=name, instead=instead)


def _forms(array: np.ndarray) -> list[np.ndarray]:
    """Returns an array as matrices, also transposed."""
    return [form for matrix in _matrices(array) for form in (matrix, matrix.T)]


def _relation(place: str, value: np.ndarray, array: np.ndarray) -> str:
    """Describes a tensor of the graph by the array in its place; empty if they are unrelated."""
    if not value.any():
        return f"{place} is zero"
    for own in (form.astype(value.dtype).astype(np.float64) for form in _forms(array) if form.shape == value.shape):
        given = value.astype(np.float64)
        factor = (given * own).sum() / max((own * own).sum(), 1e-30)
        if np.abs(given - factor * own).max() <= FLOAT_RTOL * np.abs(given).max():
            return f"{place} is {factor:.6g} times as large"
        for axis in range(own.ndim):
            if np.array_equal(np.unique(given, axis=axis), np.unique(own, axis=axis)):
                return f"{place} has the slices of its axis {axis} in another order"
    return ""


def _key(matrix: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    return matrix.shape, hashlib.blake2b(np.ascontiguousarray(matrix, np.float32).tobytes()).digest()
