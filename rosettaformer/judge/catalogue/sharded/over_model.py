"""Known bugs along `model`: devices with other heads, features or vocabulary shards."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from reference_numpy.sharding import chunks

from ...case import Case
from ...expectation.mesh import Device
from .fault import Altered, Variants

Array = np.ndarray


def _exponentials(device: Device, logits_btv: Array, top_bt1: Array) -> Array:
    """Returns the sum over the device's vocabulary shard."""
    return np.exp(logits_btv[..., device.part(logits_btv.shape[-1])] - top_bt1).sum(-1, keepdims=True)


def _own_exponentials(original: Callable, device: Device, logits_btv: Array, label_bt: Array) -> Array:
    top_bt1 = logits_btv.max(-1, keepdims=True)
    return top_bt1 + np.log(_exponentials(device, logits_btv, top_bt1))


def _of_label(original: Callable, device: Device, logits_btv: Array, label_bt: Array) -> Array:
    """Returns a shard's own normalizer where it holds the label, elsewhere infinity."""
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
    """Sums what every device finds in its table shard, including for tokens of other shards.

    filled: zero rows pad the last shard to the size of the others.
    """
    table_vd, own, _ = _own_table(moved, filled, device, tree["table"], token)
    return device.sum("model", original(device, function, tree | {"table": table_vd}, own, *rest))


def _of_others(
    moved: Callable, filled: bool, original: Callable, device: Device, function: Callable, tree: Any, token: Array, *rest: Any,
    cotangent: Array,
) -> Any:  # fmt: skip
    """The gradient of `_rows_of_others`."""
    table_vd, own, part = _own_table(moved, filled, device, tree["table"], token)
    found = original(device, function, tree | {"table": table_vd}, own, *rest, cotangent=cotangent)
    gradient = np.zeros_like(tree["table"])
    gradient[part] = found["parameters"]["table"][: part.stop - part.start]
    return {"parameters": {"table": gradient}}


def _own_table(moved: Callable, filled: bool, device: Device, table_vd: Array, token: Array) -> tuple[Array, Array, slice]:
    """Returns the device's table shard, the token indices within it, and its slice of the table."""
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
    """Returns the log normalizer including the zero logits that pad the last shard."""
    top_bt1 = logits_btv.max(-1, keepdims=True)
    filling = -logits_btv.shape[-1] % device.mesh.model
    return top_bt1 + np.log(np.exp(logits_btv - top_bt1).sum(-1, keepdims=True) + filling * np.exp(-top_bt1))


def _vocabulary_reversed(original: Callable, device: Device, logits_btv: Array) -> Array:
    return np.concatenate(device.all("model", logits_btv)[::-1], -1)


def _own(original: Callable, device: Device, where: str, *rest: Any) -> Array:
    """Returns the device's share instead of the sum."""
    return rest[-1]


def _own_of(wanted: str, original: Callable, device: Device, site: str, of: str, share: Array) -> Array:
    return share if of == wanted else original(device, site, of, share)


def _own_tokens_of_output(original: Callable, device: Device, site: str, share: Array, bias: Array | None) -> Array:
    """Returns each device's share at its own tokens instead of the sum."""
    shares, own = device.all("model", share), chunks(share.shape[1], device.mesh.model)
    joined = np.concatenate([each[:, part] for each, part in zip(shares, own, strict=True)], 1)
    return joined if bias is None else joined + bias


def _gradient_of_own_tokens(original: Callable, device: Device, site: str, cotangent: Array) -> Array:
    found, own = np.zeros_like(cotangent), device.part(cotangent.shape[1])
    found[:, own] = cotangent[:, own]
    return found


def _again(original: Callable, device: Device, *rest: Any) -> Array:
    """Sums the result over model again."""
    return device.sum("model", original(device, *rest))


def _bias_on_every_device(original: Callable, device: Device, site: str, share: Array, bias: Array | None) -> Array:
    return original(device, site, share if bias is None else share + bias, None)


def _norm_of_own(wanted: str, original: Callable, device: Device, name: str, x_bthk: Array) -> Array:
    return x_bthk if name == wanted or not wanted else original(device, name, x_bthk)


def _shared_own(ends: tuple[str, ...], original: Callable, device: Device, name: str, share: Array) -> Array:
    return share if name.split(".")[-2] in ends else original(device, name, share)


def _pieces(original: Callable, device: Device, share_bsgk: Array) -> Array:
    """Joins each device's slice of the key heads' features, taken from its own share."""
    shares, flat = device.all("model", share_bsgk), share_bsgk.shape[2] * share_bsgk.shape[3]
    flattened = [share.reshape(*share.shape[:2], flat) for share in shares]
    pieces = [share[..., own] for share, own in zip(flattened, chunks(flat, device.mesh.model), strict=True)]
    return np.concatenate(pieces, -1).reshape(share_bsgk.shape) / device.mesh.model


def _added_up(original: Callable, device: Device, name: str, gradient: Array) -> Array:
    """Sums the copies of all devices."""
    return device.sum("model", gradient)


def _own_tokens(
    original: Callable, device: Device, site: str, norm: Callable, tree: Any, config: Any, x_btd: Array, cotangent: Array
) -> Any:
    found, own = original(device, site, norm, tree, config, x_btd, cotangent), device.part(x_btd.shape[1])
    return found | {"parameters": norm(tree, config, x_btd[:, own], cotangent=cotangent[:, own])["parameters"]}


def _restarting(axis: str, original: Callable, device: Device, function: Callable, mask_bt: Array, *rest: Any) -> Array:
    own = [mask_bt[:, part] for part in chunks(mask_bt.shape[1], device.mesh.sizes[axis])]
    return np.concatenate([original(device, function, mask, *rest) for mask in own if mask.shape[1]], 1)


def few_keys(case: Case) -> bool:
    """Returns whether there are fewer key heads than `model`, or `model` does not divide them."""
    return case.mesh is not None and case.config.key_value_heads % case.mesh.model > 0


NEEDS = {"SHD7": few_keys, "SHD8": few_keys}
KEYS, NORMS = ("key", "value", "key_norm"), ("query_norm", "key_norm")
ALTERED: Altered = {
    "SHD1": {"input_gradient": _own},
    "SHD2": {"output": lambda original, device, site, share, bias: share if bias is None else share + bias},
    "SHD3": {"output_gradient": _again},
    "SHD4": {"output": _bias_on_every_device},
    "SHD5": {"normed_heads": partial(_norm_of_own, "")},
    "SHD6": {"shared_gradient": partial(_shared_own, NORMS)},
    "SHD7": {"shared_gradient": partial(_shared_own, KEYS)},
    "SHD8": {"groups": lambda original, device, heads, count: [device.column % count]},
    "SHD9": {"whole_gradient": _added_up},
    "SHD10": {"norm_gradient": _own_tokens},
    "SHD11": {"positions": partial(_restarting, "model")},
    "SHD12": {"log_normaliser": _own_exponentials},
    "SHD13": {"log_normaliser": _own_highest},
    "SHD14": _lookup(_clipped, False),
    "SHD15": {"vocabulary": _vocabulary_reversed},
    "SHD16": {"log_normaliser": _filled_vocabulary},
    "SHD27": {"log_normaliser": _of_label},
}
VARIANTS: Variants = {
    "SHD1": {
        "the gradient of the queries' input is not summed over model": {"input_gradient": partial(_own_of, "query")},
        "the gradient of the input of keys and values is not summed over model": {"input_gradient": partial(_own_of, "memory")},
    },
    "SHD2": {
        "each device continues with its own share at its own tokens": {
            "output": _own_tokens_of_output, "output_gradient": _gradient_of_own_tokens,
        },
    },
    "SHD3": {"the gradient of a sub-layer's input is summed over model twice": {"input_gradient": _again}},
    "SHD4": {
        "a bias is added on every device, and its gradient is summed over model": {
            "output": _bias_on_every_device, "bias_gradient": _added_up,
        },
    },
    "SHD5": {
        "query norms use each device's own mean square": {"normed_heads": partial(_norm_of_own, "query")},
        "key norms use each device's own mean square": {"normed_heads": partial(_norm_of_own, "key")},
    },
    "SHD7": {
        "each device keeps a slice of the gradient of all keys and values, from its own share": {
            "key_gradient": _pieces, "shared_gradient": partial(_shared_own, ("key_norm",)),
        },
        "the gradients of replicated keys and values, and of their input, are not summed": {
            "shared_gradient": partial(_shared_own, KEYS), "input_gradient": partial(_own_of, "memory"),
        },
    },
    "SHD8": {"every device uses the first key head": {"groups": lambda original, device, heads, count: [0]}},
    "SHD11": {"positions restart if a row's tokens are split over data": {"positions": partial(_restarting, "data")}},
    "SHD14": {
        "a device embeds tokens of other vocabulary shards, in a zero-padded table": _lookup(_clipped, True),
        "ids of other vocabulary shards are taken modulo the shard size": _lookup(np.remainder, False),
        "ids are taken modulo the shard size of a zero-padded table": _lookup(np.remainder, True),
    },
}  # fmt: skip
