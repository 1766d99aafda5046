"""A graph's tensors beside the checkpoint's: kernels that are transposed, layers that are exchanged, tensors that hold other numbers."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from ..constants.reading import LIMIT, Constants
from .evidence import Finding

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_FLOATS = "fV"  # ml_dtypes' are V


def findings(parameters: Mapping[str, np.ndarray], constants: Constants) -> Iterator[Finding]:
    """Yields what cannot be another way to store the checkpoint. A tensor of which no layer's is in the graph gives no finding: an exporter
    has fused, folded or rounded it.

    parameters: of the checkpoint, by canonical name.
    """
    held = {place: value for place, value in constants.values if value.size > 1 and value.dtype.kind in _FLOATS}
    small = {name: array for name, array in parameters.items() if array.size <= LIMIT}  # of larger ones the graph's are not read
    for sentence in (*_kernels(small, constants, held), *_other_numbers(small, held)):
        yield Finding("weights", sentence)


def _kernels(parameters: Mapping[str, np.ndarray], constants: Constants, held: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yields what is wrong with the kernels that multiply from the right."""
    kernels = {_key(matrix): name for name, array in parameters.items() if name.endswith(".kernel") for matrix in _matrices(array)}
    order: dict[str, list[int]] = {}
    for place, transposed in constants.products:
        if place not in held or held[place].ndim != 2:
            continue
        matrix = held[place].T if transposed else held[place]
        name = kernels.get(_key(matrix))
        if name is None and (name := kernels.get(_key(matrix.T))) and matrix.shape[0] == matrix.shape[1]:
            yield f"{place} multiplies by the transposed {name}"
        if name and (layer := _LAYER.search(name)) and "cross_attention" not in name:
            order.setdefault(_LAYER.sub(".layers.N.", name), []).append(int(layer[1]))
    for kind, layers in order.items():
        if layers != sorted(layers):
            yield f"in the order of the graph {kind} is that of the layers {', '.join(map(str, layers))}"


def _other_numbers(parameters: Mapping[str, np.ndarray], held: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yields tensors that are not in the graph, where those of other layers are, and one of the same size is in their place."""
    inside = {_numbers(value): place for place, value in held.items()}
    own = {_numbers(array) for array in parameters.values()}
    unknown = {place: value for place, value in held.items() if _numbers(value) not in own}
    absent = {name: array for name, array in parameters.items() if _numbers(array) not in inside}
    kinds = {_LAYER.sub(".layers.N.", name) for name in parameters.keys() - absent.keys() if _LAYER.search(name)}
    for name, array in absent.items():
        places = [place for place, value in unknown.items() if value.size == array.size]
        if _LAYER.sub(".layers.N.", name) in kinds and places:
            zeros = [place for place in places if not unknown[place].any()]
            instead = f"{zeros[0]} is zero" if zeros else f"{' or '.join(places[:3])} holds other numbers"
            yield f"the graph holds no {name}, as it holds those of other layers; {instead}"


def _matrices(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yields a kernel as a matrix from inputs to outputs, for each number of axes that its inputs may have."""
    for axis in range(1, array.ndim):
        yield array.reshape(int(np.prod(array.shape[:axis])), -1)


def _key(matrix: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    return matrix.shape, np.ascontiguousarray(matrix, np.float32).tobytes()


def _numbers(array: np.ndarray) -> bytes:
    """Returns the numbers of a tensor, whatever the order of its axes."""
    return np.sort(array.astype(np.float32), axis=None).tobytes()
