"""Faults of the vocabulary, of which each device along `model` has a part."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from reference_numpy.sharding import chunks

from ...reference.mesh import Device
from .fault import Altered, Variants

Array = np.ndarray


def _exponentials(device: Device, logits_btv: Array, top_bt1: Array) -> Array:
    """The sum of the device's part of the vocabulary."""
    return np.exp(logits_btv[..., device.part(logits_btv.shape[-1])] - top_bt1).sum(-1, keepdims=True)


def _own_exponentials(original: Callable, device: Device, logits_btv: Array, label_bt: Array) -> Array:
    top_bt1 = logits_btv.max(-1, keepdims=True)
    return top_bt1 + np.log(_exponentials(device, logits_btv, top_bt1))


def _of_label(original: Callable, device: Device, logits_btv: Array, label_bt: Array) -> Array:
    """Each part's own normaliser where it has the label; infinite, so that no logit has a gradient, in the other parts."""
    log_z_btv = np.full(logits_btv.shape, np.inf, logits_btv.dtype)
    for part in chunks(logits_btv.shape[-1], device.mesh.model):
        here_bt = (part.start <= label_bt) & (label_bt < part.stop)
        log_z_btv[here_bt, part] = np.logaddexp.reduce(logits_btv[here_bt, part], -1, keepdims=True)
    return log_z_btv


def _own_highest(original: Callable, device: Device, logits_btv: Array, label_bt: Array) -> Array:
    top_bt1 = logits_btv[..., device.part(logits_btv.shape[-1])].max(-1, keepdims=True, initial=-np.inf)
    return top_bt1 + np.log(device.sum("model", _exponentials(device, logits_btv, top_bt1)))


def _rows_of_others(
    moved: Callable, filled: bool, original: Callable, device: Device, function: Callable, tree: Any, token: Array, *rest: Any
) -> Array:
    """What every device finds in its part of the table, also of the tokens that it does not have, added up. filled: rows of zeros follow
    the last one, so that all parts are as large.
    """
    table_vd, own, _ = _own_table(moved, filled, device, tree["table"], token)
    return device.sum("model", original(device, function, tree | {"table": table_vd}, own, *rest))


def _of_others(
    moved: Callable, filled: bool, original: Callable, device: Device, function: Callable, tree: Any, token: Array, *rest: Any,
    cotangent: Array,
) -> Any:  # fmt: skip
    """The gradient of what every device finds."""
    table_vd, own, part = _own_table(moved, filled, device, tree["table"], token)
    found = original(device, function, tree | {"table": table_vd}, own, *rest, cotangent=cotangent)
    gradient = np.zeros_like(tree["table"])
    gradient[part] = found["parameters"]["table"][: part.stop - part.start]
    return {"parameters": {"table": gradient}}


def _own_table(moved: Callable, filled: bool, device: Device, table_vd: Array, token: Array) -> tuple[Array, Array, slice]:
    """The device's part of the table, the tokens in it, and where it begins and ends."""
    part, most = device.part(len(table_vd)), -(-len(table_vd) // device.mesh.model)
    own_vd = table_vd[part]
    if filled:
        own_vd = np.concatenate([own_vd, np.zeros((most - len(own_vd), table_vd.shape[1]), table_vd.dtype)])
    return own_vd, moved(token - part.start, max(len(own_vd), 1)), part


def _lookup(moved: Callable, filled: bool) -> dict[str, Callable]:
    return {"lookup": partial(_rows_of_others, moved, filled), "lookup_gradient": partial(_of_others, moved, filled)}


def _clipped(token: Array, size: int) -> Array:
    return np.clip(token, 0, size - 1)


def _filled_vocabulary(original: Callable, device: Device, logits_btv: Array, label_bt: Array) -> Array:
    """The log of the sum of exponentials, of which those of zero logits are part that fill the last device's part of the vocabulary."""
    top_bt1 = logits_btv.max(-1, keepdims=True)
    filling = -logits_btv.shape[-1] % device.mesh.model
    return top_bt1 + np.log(np.exp(logits_btv - top_bt1).sum(-1, keepdims=True) + filling * np.exp(-top_bt1))


def _reversed(original: Callable, device: Device, logits_btv: Array) -> Array:
    return np.concatenate(device.all("model", logits_btv)[::-1], -1)


ALTERED: Altered = {
    "SHD12": {"log_normaliser": _own_exponentials},
    "SHD13": {"log_normaliser": _own_highest},
    "SHD14": _lookup(_clipped, False),
    "SHD15": {"vocabulary": _reversed},
    "SHD16": {"log_normaliser": _filled_vocabulary},
    "SHD27": {"log_normaliser": _of_label},
}
VARIANTS: Variants = {
    "SHD14": {
        "a device embeds tokens of others' parts, in a table filled with zeros": _lookup(_clipped, True),
        "ids of other devices' parts are taken modulo the part": _lookup(np.remainder, False),
        "ids are taken modulo the part of a table that is filled with zeros": _lookup(np.remainder, True),
    },
}
