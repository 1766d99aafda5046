"""The other parts of a model on a mesh: every device has some of the features of a feed-forward network, and a part of the vocabulary."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import loss as losses

from .devices import Device

Tree = Mapping[str, Any]
FEATURES = {"gate": {"kernel": 1, "bias": 0}, "hidden": {"kernel": 1, "bias": 0}, "output": {"kernel": 0}}
VOCABULARY = {"kernel": 1, "bias": 0}


def _own(array: np.ndarray, axis: int | None, device: Device) -> np.ndarray:
    return array if axis is None else array[(slice(None),) * axis + (device.part(array.shape[axis]),)]


def _placed(gradient: np.ndarray, whole: np.ndarray, axis: int | None, device: Device) -> np.ndarray:
    """The gradient of the device's part, in its place of the whole."""
    if axis is None:
        return gradient
    found = np.zeros(whole.shape, gradient.dtype)
    found[(slice(None),) * axis + (device.part(whole.shape[axis]),)] = gradient
    return found


def _features(parameters: Tree, device: Device) -> dict[str, Any]:
    return {
        part: {name: _own(array, FEATURES[part].get(name), device) for name, array in tree.items() if (part, name) != ("output", "bias")}
        for part, tree in parameters.items()
    }


def feed_forward(
    device: Device, original: Callable, parameters: Tree, x_btd: Any, activation_name: str,
    keep_btf: Any = None, dropout_rate: float = 0.0,
) -> Any:  # fmt: skip
    """`feed_forward` on a device."""
    keep_btf = None if keep_btf is None else _own(keep_btf, 2, device)
    partial = original(_features(parameters, device), x_btd, activation_name, keep_btf, dropout_rate)
    site = device.path(parameters["hidden"]["kernel"], "hidden.kernel")
    return device.operations.output(device, site, partial, parameters["output"].get("bias"))


def feed_forward_vjp(
    device: Device, original: Callable, parameters: Tree, x_btd: Any, activation_name: str, keep_btf: Any = None,
    dropout_rate: float = 0.0, *, cotangent: Any,
) -> Any:  # fmt: skip
    """`feed_forward_vjp` on a device."""
    keep_btf = None if keep_btf is None else _own(keep_btf, 2, device)
    site = device.path(parameters["hidden"]["kernel"], "hidden.kernel")
    inner = device.operations.output_gradient(device, site, cotangent)
    found = original(_features(parameters, device), x_btd, activation_name, keep_btf, dropout_rate, cotangent=inner)
    gradients = {
        part: {name: _placed(gradient, parameters[part][name], FEATURES[part].get(name), device) for name, gradient in tree.items()}
        for part, tree in found["parameters"].items()
    }
    if "bias" in parameters["output"]:
        own = cotangent.reshape(-1, cotangent.shape[-1]).sum(0)
        gradients["output"]["bias"] = device.operations.bias_gradient(device, site, own)
    x_btd = device.operations.input_gradient(device, site, "x", found["x_btd"])
    return {"parameters": gradients, "x_btd": x_btd}


def embedding(
    device: Device, original: Callable, parameters: Tree, token: Any, *rest: Any, **options: Any,
) -> Any:  # fmt: skip
    """`embedding` on a device."""
    return device.operations.lookup(device, original, parameters, token, *rest, *options.values())


def embedding_vjp(
    device: Device, original: Callable, parameters: Tree, token: Any, *rest: Any, cotangent: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """`embedding_vjp` on a device."""
    given = parameters, token, *rest, *options.values()
    return device.operations.lookup_gradient(device, original, *given, cotangent=cotangent)


def logits(
    device: Device, original: Callable, parameters: Tree, x_btd: Any, *rest: Any, **options: Any,
) -> Any:  # fmt: skip
    """`logits` on a device."""
    if "logits" in device.whole:
        return original(parameters, x_btd, *rest, **options)
    own = {name: _own(array, VOCABULARY[name], device) for name, array in parameters.items()}
    return device.operations.vocabulary(device, original(own, x_btd, *rest, **options))


def logits_vjp(
    device: Device, original: Callable, parameters: Tree, x_btd: Any, *rest: Any, cotangent: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """`logits_vjp` on a device."""
    if "logits" in device.whole:
        return original(parameters, x_btd, *rest, cotangent=cotangent, **options)
    own = {name: _own(array, VOCABULARY[name], device) for name, array in parameters.items()}
    found = original(own, x_btd, *rest, **options, cotangent=_own(cotangent, cotangent.ndim - 1, device))
    gradients = {name: _placed(array, parameters[name], VOCABULARY[name], device) for name, array in found["parameters"].items()}
    x_btd = device.operations.input_gradient(device, "logits", "x", found["x_btd"])
    return {"parameters": gradients, "x_btd": x_btd}


def cross_entropy(
    device: Device, original: Callable, logits_btv: Any, label_bt: Any, mask_bt: Any = None,
    smoothing: float = 0.0, total: Any = None,
) -> Any:  # fmt: skip
    """`cross_entropy` on a device: that of the whole batch."""
    total = _total(device, label_bt, mask_bt, total)
    log_z_btv = device.operations.log_normaliser(device, logits_btv, label_bt)
    if log_z_btv is None:
        own = original(logits_btv, label_bt, mask_bt, smoothing, 1) / logits_btv.dtype.type(total)
    else:
        all_z_btv = np.broadcast_to(log_z_btv, logits_btv.shape)
        log_z_bt, label_logit_bt = (np.take_along_axis(array, label_bt[..., None], -1)[..., 0] for array in (all_z_btv, logits_btv))
        value_bt = log_z_bt - (1 - smoothing) * label_logit_bt - smoothing * logits_btv.mean(-1)
        own = np.where(True if mask_bt is None else mask_bt, value_bt, 0).sum() / total
    return device.operations.loss(device, np.asarray(own, logits_btv.dtype))


def cross_entropy_vjp(
    device: Device, original: Callable, logits_btv: Any, label_bt: Any, mask_bt: Any = None, smoothing: float = 0.0,
    total: Any = None, *, cotangent: Any,
) -> Any:  # fmt: skip
    """`cross_entropy_vjp` on a device."""
    total = _total(device, label_bt, mask_bt, total)
    log_z_btv = device.operations.log_normaliser(device, logits_btv, label_bt)
    share = np.asarray(cotangent, logits_btv.dtype) / logits_btv.dtype.type(total)
    found = original(logits_btv, label_bt, mask_bt, smoothing, 1, cotangent=share)
    if log_z_btv is None:
        return found
    counts_bt = (np.ones(label_bt.shape, bool) if mask_bt is None else mask_bt) * share
    exact = losses._log_softmax(logits_btv)  # its normaliser is exchanged for the device's
    other_btv = np.exp(logits_btv - log_z_btv) - np.exp(exact)
    return {"logits_btv": found["logits_btv"] + counts_bt[..., None] * other_btv}


def _total(device: Device, label_bt: Any, mask_bt: Any, total: Any) -> Any:
    """The number by which losses are divided; a case that gives one gives that of the whole batch."""
    if total is not None:
        return total
    count = int(label_bt.size if mask_bt is None else mask_bt.sum())
    return np.maximum(device.operations.label_count(device, count), 1)
