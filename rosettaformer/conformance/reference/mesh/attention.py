"""Attention on a mesh: every device has some of the heads."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .devices import Device

Tree = Mapping[str, Any]
SPLIT = {"query": {"kernel": 1, "bias": 0}, "key": {"kernel": 1, "bias": 0}, "value": {"kernel": 1, "bias": 0}, "output": {"kernel": 0}}
OF_KEYS = ("key", "value", "key_norm")
BESIDE = ("mask_bhts", "bias_bhts", "keep_bhts")  # what has an axis of heads in its second place, or one of size 1


class Heads:
    """Which heads of an attention a device has, and its part of the parameters."""

    def __init__(self, device: Device, parameters: Tree, config: Any) -> None:
        self.device, self.whole = device, parameters
        self.count, self.groups = (parameters[name]["kernel"].shape[1] for name in ("query", "key"))
        self.few = bool(self.groups % device.mesh.model)  # every device has all key heads
        device.notes["few"] = self.count if self.few else 0
        self.wide_norm = config is not None and config.query_key_norm == "width"

    def axis(self, part: str, name: str) -> int | None:
        """Returns which axis of a parameter is split; None if every device has it whole."""
        if part in OF_KEYS and self.few:
            return None
        return (0 if self.wide_norm else None) if part.endswith("_norm") else SPLIT[part].get(name)

    def slice(self, part: str) -> slice:
        """Returns the device's heads."""
        return self.device.part(self.groups if part in OF_KEYS else self.count)

    def own(self) -> dict[str, Any]:
        """Returns the device's part of the parameters, without the bias of the output."""
        return {
            part: {
                name: array if (axis := self.axis(part, name)) is None else array[(slice(None),) * axis + (self.slice(part),)]
                for name, array in parameters.items()
                if (part, name) != ("output", "bias")
            }
            for part, parameters in self.whole.items()
        }

    def beside(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments of the call, those of masks and biases for the device's heads."""
        return {
            name: value[:, self.slice("query")] if name in BESIDE and value is not None and value.shape[1] > 1 else value
            for name, value in arguments.items()
        }

    def placed(self, part: str, name: str, gradient: np.ndarray) -> np.ndarray:
        """Returns the gradient of the device's part, in its place of the whole."""
        axis = self.axis(part, name)
        if axis is None:
            return gradient
        whole = np.zeros(self.whole[part][name].shape, gradient.dtype)
        whole[(slice(None),) * axis + (self.slice(part),)] = gradient
        return whole


def _named(values: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    names = ("mask_bhts", "bias_bhts", "causal")
    return dict(zip(names, values, strict=False)) | dict(options)


def forward(
    device: Device, original: Callable, parameters: Tree, query_btd: Any, memory_bsd: Any, *rest: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """`multi_head_attention` on a device."""
    heads, arguments = Heads(device, parameters, options.get("config")), _named(rest, options)
    found = original(heads.own(), query_btd, memory_bsd, **heads.beside(arguments))
    partial, weights = found if arguments.get("return_weights") else (found, None)
    site = device.path(parameters["query"]["kernel"], "query.kernel")
    output = device.operations.output(device, site, partial, parameters["output"].get("bias"))
    return output if weights is None else (output, device.gather("model", weights, 1))


def backward(
    device: Device, original: Callable, parameters: Tree, query_btd: Any, memory_bsd: Any, *rest: Any,
    cotangent: Any, **options: Any,
) -> Any:  # fmt: skip
    """`multi_head_attention_vjp` on a device."""
    heads, site = Heads(device, parameters, options.get("config")), device.path(parameters["query"]["kernel"], "query.kernel")
    inner_cotangent = device.operations.output_gradient(device, site, cotangent)
    found = original(heads.own(), query_btd, memory_bsd, **heads.beside(_named(rest, options)), cotangent=inner_cotangent)
    gradients = {part: dict(tree) for part, tree in found["parameters"].items()}
    for part, tree in gradients.items():
        for name, gradient in tree.items():
            path = f"{site}.{part}.{name}".lstrip(".")
            if heads.axis(part, name) is None:
                tree[name] = device.operations.shared_gradient(device, path, gradient)
            else:
                tree[name] = heads.placed(part, name, gradient)
    if "bias" in parameters["output"]:
        own = cotangent.reshape(-1, cotangent.shape[-1]).sum(0)
        gradients["output"]["bias"] = device.operations.bias_gradient(device, site, own)
    result: dict[str, Any] = {"parameters": gradients}
    for of in ("query", "memory"):
        name = "query_btd" if of == "query" else "memory_bsd"
        result[name] = device.operations.input_gradient(device, site, of, found[name])
    if "bias_bhts" in found:
        result["bias_bhts"] = device.gather("model", found["bias_bhts"], 1)
    return result


def dot_product(
    device: Device, original: Callable, query_bthk: Any, key_bsgk: Any, value_bsge: Any, *rest: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """`scaled_dot_product_attention`, and its vjp, of a device whose query heads use some of the key heads that it has."""
    if not (count := device.notes.get("few")):
        return original(query_bthk, key_bsgk, value_bsge, *rest, **options)
    taken = device.operations.groups(device, count, key_bsgk.shape[2])
    found = original(query_bthk, key_bsgk[:, :, taken], value_bsge[:, :, taken], *rest, **options)
    if "cotangent" not in options:
        return found
    placed = {}
    for name, whole in (("key_bsgk", key_bsgk), ("value_bsge", value_bsge)):
        placed[name] = np.zeros_like(whole)
        placed[name][:, :, taken] = found[name]
    placed["value_bsge"] = device.operations.key_gradient(device, placed["value_bsge"])
    return found | placed


def norm(
    device: Device, original: Callable, parameters: Tree, name: str, x_bthk: Any, config: Any, *,
    cotangent: Any = None,
) -> Any:  # fmt: skip
    """`query_key_norm`, and its vjp, of a device that has some of the heads over which it divides."""
    given = {} if cotangent is None else {"cotangent": cotangent}
    alone = config is None or config.query_key_norm != "width"
    few = name == "key" and device.notes.get("few")
    if few and cotangent is not None:
        gradient, norms = original(parameters, name, x_bthk, config, **given)
        return device.operations.key_gradient(device, gradient), norms
    if alone or few:
        return original(parameters, name, x_bthk, config, **given)
    whole_bthk = device.operations.normed_heads(device, name, x_bthk)
    if whole_bthk.shape == x_bthk.shape:
        return original(parameters, name, x_bthk, config, **given)
    scale = {f"{name}_norm": {part: device.gather("model", own, 0) for part, own in parameters[f"{name}_norm"].items()}}
    own = slice(device.column * x_bthk.shape[2], (device.column + 1) * x_bthk.shape[2])
    if cotangent is None:
        return original(scale, name, whole_bthk, config)[:, :, own]
    gradient, norms = original(scale, name, whole_bthk, config, cotangent=device.gather("model", cotangent, 2))
    return gradient[:, :, own], {key: {part: array[own] for part, array in tree.items()} for key, tree in norms.items()}
