"""Finds transposed kernels, exchanged layers, untied heads and wrong numbers among the tensors."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.parameters import ties

from ..constants.reading import LIMIT, Constants
from . import words
from .evidence import Finding

Arrays = Mapping[str, np.ndarray]
Products = Iterable[tuple[str, np.ndarray]]  # tensors with their places
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_FLOATS = "fV"  # ml_dtypes' dtypes have kind V
RTOL = 1e-2  # for a scaled table in half precision


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
    for sentence in dict.fromkeys((*_kernels(small, graphs), *_head(config, small, [*chain(*graphs)]), *_other_numbers(small, held))):
        yield Finding("weights", sentence)


def _kernels(parameters: Arrays, graphs: Iterable[Products]) -> Iterator[str]:
    """Yields transposed kernels, and kernels of exchanged layers."""
    named = [
        (_key(array.reshape(math.prod(array.shape[:axis]), -1)), name)  # its inputs may have several axes
        for name, array in parameters.items()
        if name.endswith(".kernel")
        for axis in range(1, array.ndim)
    ]
    count = Counter(key for key, _ in named)
    kernels = {key: name for key, name in named if count[key] == 1}  # equal kernels cannot be told apart
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
    """Yields tensors missing for only some layers, and what the graph has instead."""
    dtypes = {value.dtype for value in held.values()}
    own = {name: {_numbers(array.astype(dtype)) for dtype in dtypes} for name, array in parameters.items()}
    inside, every = {_numbers(value) for value in held.values()}, set().union(*own.values())
    unknown = {place: value for place, value in held.items() if _numbers(value) not in every}
    absent = [name for name, numbers in own.items() if not numbers & inside]
    kinds = {_LAYER.sub(".layers.N.", name) for name in own.keys() - {*absent} if _LAYER.search(name)}
    for name in absent:
        places = [place for place, value in unknown.items() if value.size == parameters[name].size]
        if _LAYER.sub(".layers.N.", name) in kinds and places:
            zero = next((place for place in places if not unknown[place].any()), "")
            instead = f"{zero} is zero" if zero else f"{' or '.join(places[:3])} holds other numbers"
            yield words.LACKS.format(name=name, instead=instead)


def _key(matrix: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    return matrix.shape, np.ascontiguousarray(matrix, np.float32).tobytes()


def _numbers(array: np.ndarray) -> bytes:
    """Returns the sorted numbers of a tensor, to compare tensors with any order of axes."""
    return np.sort(array.astype(np.float32), axis=None).tobytes()
