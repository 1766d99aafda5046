"""The components of a model on a mesh; devices hold some heads, features and vocabulary."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference_numpy import experts, values
from reference_numpy import loss as losses
from reference_numpy.gate import Gate

from .devices import Device, alone

Tree = Mapping[str, Any]
SPLIT = {"query": {"kernel": 1, "bias": 0}, "key": {"kernel": 1, "bias": 0}, "value": {"kernel": 1, "bias": 0}, "output": {"kernel": 0}}
OF_KEYS = ("key", "value", "key_norm")


class Heads:
    """The heads of an attention on a device, and its part of the parameters."""

    def __init__(self, device: Device, parameters: Tree, config: Any) -> None:
        self.device, self.whole = device, parameters
        self.count, self.groups = (parameters[name]["kernel"].shape[1] for name in ("query", "key"))
        self.few = bool(self.groups % device.mesh.model)  # every device holds all key heads
        device.notes["few"] = self.count if self.few else 0
        self.wide_norm = config.query_key_norm in ("width", "each_head")

    def axis(self, part: str, name: str) -> int | None:
        """Returns the split axis of a parameter; None if every device holds it whole."""
        if part in OF_KEYS and self.few:
            return None
        return (0 if self.wide_norm else None) if part.endswith("_norm") else SPLIT[part].get(name)

    def slice(self, part: str) -> slice:
        """Returns the device's heads."""
        return self.device.part(self.groups if part in OF_KEYS else self.count)

    def own(self) -> dict[str, Any]:
        """Returns the device's part of the parameters, without the bias of the output."""
        sink = {"sink": self.whole["sink"][self.slice("sink")]} if "sink" in self.whole else {}
        return sink | {
            part: {
                name: array if (axis := self.axis(part, name)) is None else array[(slice(None),) * axis + (self.slice(part),)]
                for name, array in parameters.items()
                if (part, name) != ("output", "bias")
            }
            for part, parameters in self.whole.items()
            if part != "sink"
        }

    def beside(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of the call with masks and biases for the device's heads."""
        found = dict(arguments)
        if "attending" in found:
            found["attending"] = found["attending"]._replace(mask_bhts=self._of_heads(found["attending"].mask_bhts))
        return found | ({"keep_bhts": self._of_heads(found["keep_bhts"])} if "keep_bhts" in found else {})

    def _of_heads(self, mask_bhts: Any) -> Any:
        """Returns the device's part of a mask with more than one head."""
        return mask_bhts if mask_bhts is None or mask_bhts.shape[1] == 1 else mask_bhts[:, self.slice("query")]

    def placed(self, part: str, name: str, gradient: np.ndarray) -> np.ndarray:
        """Returns the gradient of the device's part, placed in an array of the whole."""
        axis = self.axis(part, name)
        if axis is None:
            return gradient
        whole = np.zeros(self.whole[part][name].shape, gradient.dtype)
        whole[(slice(None),) * axis + (self.slice(part),)] = gradient
        return whole


def attention(device: Device, original: Callable, parameters: Tree, config: Any, *vectors: Any, **options: Any) -> Any:
    """`multi_head_attention` on a device."""
    heads, given = Heads(device, parameters, config), inspect.signature(original).bind(parameters, config, *vectors, **options).arguments
    partial = original(**heads.beside(given) | {"parameters": heads.own()})
    site = device.path(parameters["query"]["kernel"], "query.kernel")
    return device.operations.output(device, site, partial, parameters["output"].get("bias"))


def attention_vjp(
    device: Device, original: Callable, parameters: Tree, config: Any, *vectors: Any, cotangent: Any, **options: Any,
) -> Any:  # fmt: skip
    """`multi_head_attention_vjp` on a device."""
    heads, site = Heads(device, parameters, config), device.path(parameters["query"]["kernel"], "query.kernel")
    inner = device.operations.output_gradient(device, site, cotangent)
    given = inspect.signature(original).bind(parameters, config, *vectors, **options, cotangent=inner).arguments
    found = original(**heads.beside(given) | {"parameters": heads.own()})
    gradients: dict[str, Any] = {part: dict(tree) for part, tree in found["parameters"].items() if part != "sink"}
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
    if "sink" in parameters:
        gradients["sink"] = _placed(found["parameters"]["sink"], parameters["sink"], 0, device)
    result: dict[str, Any] = {"parameters": gradients}
    for of in ("query", "memory"):
        name = "query_btd" if of == "query" else "memory_bsd"
        result[name] = device.operations.input_gradient(device, site, of, found[name])
    if "mask_bhts" in found:
        result["mask_bhts"] = device.gather("model", found["mask_bhts"], 1)
    return result


def dot_product(device: Device, original: Callable, heads: values.Heads, *rest: Any, **options: Any) -> Any:
    """`scaled_dot_product_attention` and its vjp, if query heads use only some key heads."""
    if not (count := device.notes.get("few")):
        return original(heads, *rest, **options)
    _, key_bsgk, value_bsge, _ = heads
    taken = device.operations.groups(device, count, key_bsgk.shape[2])
    own = heads._replace(key_bsgk=key_bsgk[:, :, taken], value_bsge=value_bsge[:, :, taken])
    found = original(own, *rest, **options)
    if "cotangent" not in options:
        return found
    placed = {}
    for name, whole in (("key_bsgk", key_bsgk), ("value_bsge", value_bsge)):
        placed[name] = np.zeros_like(whole)
        placed[name][:, :, taken] = found[name]
    placed["value_bsge"] = device.operations.key_gradient(device, placed["value_bsge"])
    return found | placed


def query_key_norm(
    device: Device, original: Callable, parameters: Tree, config: Any, name: str, x_bthk: Any, *, cotangent: Any = None,
) -> Any:  # fmt: skip
    """`query_key_norm` and its vjp on a device that holds some of the normalized heads."""
    given = {} if cotangent is None else {"cotangent": cotangent}
    few = name == "key" and device.notes.get("few")
    if few and cotangent is not None:
        gradient, norms = original(parameters, config, name, x_bthk, **given)
        return device.operations.key_gradient(device, gradient), norms
    if config.query_key_norm != "width" or few:
        return original(parameters, config, name, x_bthk, **given)
    whole_bthk = device.operations.normed_heads(device, name, x_bthk)
    if whole_bthk.shape == x_bthk.shape:
        return original(parameters, config, name, x_bthk, **given)
    scale = {f"{name}_norm": {part: device.gather("model", own, 0) for part, own in parameters.get(f"{name}_norm", {}).items()}}
    own = slice(device.column * x_bthk.shape[2], (device.column + 1) * x_bthk.shape[2])
    if cotangent is None:
        return original(scale, config, name, whole_bthk)[:, :, own]
    gradient, norms = original(scale, config, name, whole_bthk, cotangent=device.gather("model", cotangent, 2))
    return gradient[:, :, own], {key: {part: array[own] for part, array in tree.items()} for key, tree in norms.items()}


FEATURES = {"gate": {"kernel": 1, "bias": 0}, "hidden": {"kernel": 1, "bias": 0}, "output": {"kernel": 0}}
VOCABULARY = {"kernel": 1, "bias": 0}


def _own(array: np.ndarray, axis: int | None, device: Device) -> np.ndarray:
    return array if axis is None else array[(slice(None),) * axis + (device.part(array.shape[axis]),)]


def _placed(gradient: np.ndarray, whole: np.ndarray, axis: int | None, device: Device) -> np.ndarray:
    """The gradient of the device's part, placed in an array of the whole."""
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
    keep_btf: Any = None, dropout_rate: float = 0.0, gate: Gate = Gate(),
) -> Any:  # fmt: skip
    """`feed_forward` on a device."""
    keep_btf = None if keep_btf is None else _own(keep_btf, 2, device)
    partial = original(_features(parameters, device), x_btd, activation_name, keep_btf, dropout_rate, gate)
    site = device.path(parameters["hidden"]["kernel"], "hidden.kernel")
    return device.operations.output(device, site, partial, parameters["output"].get("bias"))


def feed_forward_vjp(
    device: Device, original: Callable, parameters: Tree, x_btd: Any, activation_name: str, keep_btf: Any = None,
    dropout_rate: float = 0.0, gate: Gate = Gate(), *, cotangent: Any,
) -> Any:  # fmt: skip
    """`feed_forward_vjp` on a device."""
    keep_btf = None if keep_btf is None else _own(keep_btf, 2, device)
    site = device.path(parameters["hidden"]["kernel"], "hidden.kernel")
    inner = device.operations.output_gradient(device, site, cotangent)
    found = original(_features(parameters, device), x_btd, activation_name, keep_btf, dropout_rate, gate, cotangent=inner)
    gradients = {
        part: {name: _placed(gradient, parameters[part][name], FEATURES[part].get(name), device) for name, gradient in tree.items()}
        for part, tree in found["parameters"].items()
    }
    if "bias" in parameters["output"]:
        own = cotangent.reshape(-1, cotangent.shape[-1]).sum(0)
        gradients["output"]["bias"] = device.operations.bias_gradient(device, site, own)
    x_btd = device.operations.input_gradient(device, site, "x", found["x_btd"])
    return {"parameters": gradients, "x_btd": x_btd}


def _experts(parameters: Tree, device: Device) -> dict[str, Any]:
    """The router and the experts; on each device the other experts are zeros, which add nothing."""
    own = {
        part: {name: _placed(_own(array, 0, device), array, 0, device) for name, array in tree.items()}
        for part, tree in parameters["experts"].items()
    }
    return {"router": parameters["router"], "experts": own}


def mixture_of_experts(device: Device, original: Callable, parameters: Tree, config: Any, x_btd: Any) -> Any:
    """`mixture_of_experts` on a device."""
    with alone():
        partial = original(_experts(parameters, device), config, x_btd)
    site = device.path(parameters["experts"]["hidden"]["kernel"], "experts.hidden.kernel")
    y_btd = device.operations.output(device, site, partial, None)
    return y_btd + experts.shared_expert(parameters, config, x_btd) if "shared" in parameters else y_btd


def mixture_of_experts_vjp(device: Device, original: Callable, parameters: Tree, config: Any, x_btd: Any, *, cotangent: Any) -> Any:
    """`mixture_of_experts_vjp` on a device."""
    site = device.path(parameters["experts"]["hidden"]["kernel"], "experts.hidden.kernel")
    inner = device.operations.output_gradient(device, site, cotangent)
    with alone():
        found = original(_experts(parameters, device), config, x_btd, cotangent=inner)
    gradients = dict(found["parameters"])
    gradients["router"] = {name: device.operations.shared_gradient(device, name, g) for name, g in gradients["router"].items()}
    g_btd = device.operations.input_gradient(device, site, "x", found["x_btd"])
    if "shared" in parameters:
        shared = experts.shared_expert_vjp(parameters, config, x_btd, cotangent=cotangent)
        gradients |= shared["parameters"]
        g_btd = g_btd + shared["x_btd"]
    return {"parameters": gradients, "x_btd": g_btd}


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
    """`cross_entropy` of the whole batch on a device."""
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
    exact = losses.log_softmax(logits_btv)  # its normalizer is replaced with the device's
    other_btv = np.exp(logits_btv - log_z_btv) - np.exp(exact)
    return {"logits_btv": found["logits_btv"] + counts_bt[..., None] * other_btv}


def _total(device: Device, label_bt: Any, mask_bt: Any, total: Any) -> Any:
    """The divisor of the loss; if the case sets one, it is that of the whole batch."""
    if total is not None:
        return total
    count = int(label_bt.size if mask_bt is None else mask_bt.sum())
    return np.maximum(device.operations.label_count(device, count), 1)
