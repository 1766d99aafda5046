"""The operations of a mesh's devices beyond the reference's arithmetic; faults replace some."""

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from reference_numpy.sharding import chunks

from .devices import Device

Array = np.ndarray
Original = Callable[..., Any]


def output(device: Device, site: str, partial: Array, bias: Array | None) -> Array:
    """Returns a sub-layer's output from parts by heads or features: the sum, then the bias."""
    whole: Array = device.sum("model", partial)
    return whole if bias is None else whole + bias


def output_gradient(device: Device, site: str, cotangent: Array) -> Array:
    """Returns the gradient of each device's part of that sum, which is the gradient of the sum."""
    return cotangent


def input_gradient(device: Device, site: str, of: str, partial: Array) -> Array:
    """Returns the gradient of a sub-layer's input from the devices' shares by heads, features or
    vocabulary.

    of: the input, "query", "memory" or "x".
    """
    return device.sum("model", partial)


def shared_gradient(device: Device, name: str, partial: Array) -> Array:
    """Returns the gradient of a parameter held whole and used only for the device's heads."""
    return device.sum("model", partial)


def key_gradient(device: Device, partial_bsgk: Array) -> Array:
    """Returns the device's share of the gradient of keys or values held whole."""
    return partial_bsgk


def bias_gradient(device: Device, site: str, gradient: Array) -> Array:
    """Returns the gradient of a bias that is added to a sum and that every device holds whole."""
    return gradient


def whole_gradient(device: Device, name: str, gradient: Array) -> Array:
    """Returns the gradient of a parameter that `model` does not split: the first device's copy."""
    return device.all("model", gradient)[0]


def data_gradient(device: Device, name: str, gradient: Array) -> Array:
    """Returns a parameter's gradient from the shares of the mesh's rows."""
    return device.sum("data", gradient)


def groups(device: Device, heads: int, count: int) -> list[int]:
    """Returns the key heads that the device's query heads use, if it holds all key heads."""
    return sorted({head * count // heads for head in range(heads)[device.part(heads)]})


def normed_heads(device: Device, name: str, x_bthk: Array) -> Array:
    """Returns all heads that a norm over the width needs. name: "query" or "key"."""
    return device.gather("model", x_bthk, 2)


def label_count(device: Device, count: int) -> Any:
    """Returns the divisor of the sum of -log p, from the device's number of labels."""
    return device.sum("data", count)


def loss(device: Device, value: Array) -> Array:
    """Returns the loss of the batch from the parts of the rows of the mesh."""
    return device.sum("data", value)


def log_normaliser(device: Device, logits_btv: Array, label_bt: Array) -> Array | None:
    """Returns the log of the sum of exponentials over the vocabulary, for each logit, `b t v`, or
    for all, `b t 1`.

    None stands for the reference's own.
    """
    return None


def lookup(device: Device, original: Original, parameters: Any, token: Array, *rest: Any) -> Array:
    """Returns the rows of a table of which each device holds a part of the vocabulary."""
    return original(parameters, token, *rest)


def lookup_gradient(device: Device, original: Original, parameters: Any, token: Array, *rest: Any, cotangent: Array) -> Any:
    """Returns the gradients of an embedding, of its table and of soft tokens."""
    return original(parameters, token, *rest, cotangent=cotangent)


def positions(device: Device, original: Original, mask_bt: Array, *rest: Any) -> Array:
    """Returns the positions of the tokens."""
    return original(mask_bt, *rest)


def norm_gradient(device: Device, site: str, original: Original, parameters: Any, config: Any, x_btd: Array, cotangent: Array) -> Any:
    """Returns the gradients of a norm over whole rows, of its parameters and x_btd."""
    return original(parameters, config, x_btd, cotangent=cotangent)


def vocabulary(device: Device, logits_btv: Array) -> Array:
    """Returns the logits of the whole vocabulary from the devices' parts."""
    return device.gather("model", logits_btv, -1)


def own_rows(device: Device, count: int) -> Any:
    """Returns the rows of the batch that the device computes."""
    return chunks(count, device.mesh.data)[device.row]


def rows(device: Device, array: Array, count: int) -> Array:
    """Returns the rows of the whole batch from the parts of the rows of the mesh."""
    return device.gather("data", array, 0)


def keep(device: Device, keep_b: Array) -> Array:
    """Returns the keep masks of the device's rows from those of the whole batch."""
    return keep_b[own_rows(device, len(keep_b))]


def clip_factors(device: Device, gradients: Mapping[str, Array], limit: float) -> dict[str, Any]:
    """Returns the factors of whole gradients if their norm exceeds a limit."""
    norm = math.sqrt(sum(float(np.sum(np.square(gradient, dtype=np.float64))) for gradient in gradients.values()))
    factor = min(1.0, limit / norm) if norm else 1.0
    return {name: gradient.dtype.type(factor) for name, gradient in gradients.items()}


Operations = SimpleNamespace  # the operations of a run on a mesh by name, each replaceable
_ALL = (
    output, output_gradient, input_gradient, shared_gradient, key_gradient, bias_gradient, whole_gradient,
    data_gradient, groups, normed_heads, label_count, loss, log_normaliser, lookup, lookup_gradient,
    positions, norm_gradient, vocabulary, own_rows, rows, keep, clip_factors,
)  # fmt: skip
OPERATIONS = Operations(**{operation.__name__: operation for operation in _ALL})
