"""Known bugs along `data`: devices with other rows, and their gradients."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from reference_numpy.sharding import Mesh, chunks, splits

from ...expectation.mesh import Device
from .fault import Altered, Variants

Array = np.ndarray


def _own(original: Callable, device: Device, *rest: Any) -> Any:
    return rest[-1]


def _own_of_multiplied(original: Callable, device: Device, name: str, gradient: Array) -> Array:
    return gradient * device.mesh.data


def _mean(original: Callable, device: Device, *rest: Any) -> Any:
    return original(device, *rest) / device.mesh.data


def _own_pieces(original: Callable, device: Device, name: str, gradient: Array) -> Array:
    """Returns each mesh row's own share in its part of the gradient."""
    shares = device.all("data", gradient)
    axis = gradient.ndim - 1 if not gradient.ndim or gradient.shape[0] % device.mesh.data else 0
    own = chunks(gradient.shape[axis], device.mesh.data)
    return np.concatenate([share[(slice(None),) * axis + (part,)] for share, part in zip(shares, own, strict=True)], axis)


def _of_last(original: Callable, device: Device, array: Array, count: int) -> Array:
    """Returns the last device's rows in every part, NaN where it has fewer."""
    parts = device.all("data", array)
    most = -(-count // device.mesh.data)
    missing = np.full((most - len(parts[-1]), *array.shape[1:]), np.nan)
    return np.concatenate([np.concatenate([parts[-1], missing])] * device.mesh.data)[:count]


def _first_means(original: Callable, device: Device, count: int) -> int:
    return max(count, 1)


def _doubled(times: Callable[[Mesh], int], original: Callable, device: Device, name: str, gradient: Array) -> Array:
    whole: Array = original(device, name, gradient)
    return whole * times(device.mesh) if name.endswith("_embedding.table") and "position" not in name and "segment" not in name else whole


def _first_keep(original: Callable, device: Device, keep_b: Array) -> Array:
    own = chunks(len(keep_b), device.mesh.data)[device.row]
    return keep_b[: own.stop - own.start]


def _clip_by_own(
    counted: tuple[str, ...], original: Callable, device: Device, gradients: Mapping[str, Array], limit: float
) -> dict[str, Any]:
    """Clips each device's gradients by the norm over the mesh axes `counted`."""
    mesh, found = device.mesh, {name: np.ones_like(gradient) for name, gradient in gradients.items()}
    placed = splits(device.notes["steps"].config, mesh)
    pieces = {
        (row, column): {name: _piece(placed[name], gradients[name].shape, mesh, row, column) for name in gradients}
        for row in range(mesh.data)
        for column in range(mesh.model)
    }
    squares = {
        where: sum(float(np.sum(np.square(gradients[name][own], dtype=np.float64))) for name, own in own_pieces.items())
        for where, own_pieces in pieces.items()
    }
    for (row, column), own_pieces in pieces.items():
        beside = [
            square
            for (other_row, other_column), square in squares.items()
            if (other_row == row or "data" in counted) and (other_column == column or "model" in counted)
        ]
        norm = math.sqrt(sum(beside))
        for name, own in own_pieces.items():
            found[name][own] = min(1.0, limit / norm) if norm else 1.0
    return found


def _piece(split: tuple[Any, ...], shape: tuple[int, ...], mesh: Mesh, row: int, column: int) -> tuple[slice, ...]:
    found = []
    for place, size in zip(split, shape, strict=True):
        own = slice(0, size)
        for axis in place if isinstance(place, tuple) else (place,):
            if axis:
                part = chunks(own.stop - own.start, mesh.sizes[axis])[row if axis == "data" else column]
                own = slice(own.start + part.start, own.start + part.stop)
        found.append(own)
    return tuple(found)


ON_BOTH = ("SHD11", "SHD23", "SHD24")  # bugs that need either axis or both
MEANS = {"label_count": _first_means, "loss": _mean, "data_gradient": _mean}
ALTERED: Altered = {
    "SHD17": {"data_gradient": _own},
    "SHD18": {"data_gradient": _mean},
    "SHD19": {"data_gradient": lambda original, device, *rest: original(device, *rest) * device.mesh.data},
    "SHD20": MEANS,
    "SHD21": {"loss": _own},
    "SHD22": {"own_rows": lambda original, device, count: slice(device.row, None, device.mesh.data)},
    "SHD23": {"data_gradient": partial(_doubled, lambda mesh: 2)},
    "SHD24": {"clip_factors": partial(_clip_by_own, ())},
    "SHD25": {"keep": _first_keep},
    "SHD26": {"rows": _of_last},
}
VARIANTS: Variants = {
    "SHD17": {
        "each mesh row keeps its own share in its part of the gradient": {"data_gradient": _own_pieces},
        "the loss is multiplied by data, but its gradients are not averaged over data": {"data_gradient": _own_of_multiplied},
    },
    "SHD19": {"gradients are a sum of each part's mean over its own labels": {"label_count": _first_means, "loss": _mean}},
    "SHD20": {"the loss is a sum of each part's mean over its own labels": {"label_count": _first_means}},
    "SHD21": {"the loss is averaged over data instead of summed": {"loss": _mean}},
    "SHD24": {
        "gradients are clipped by each device's own norm along model": {"clip_factors": partial(_clip_by_own, ("data",))},
        "gradients are clipped by each device's own norm along data": {"clip_factors": partial(_clip_by_own, ("model",))},
    },
}
