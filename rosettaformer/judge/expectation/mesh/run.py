"""Runs a case on the devices of its mesh."""

import copy
import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from reference_numpy import parameters
from reference_numpy.sharding import Mesh, check, chunks, splits

from ...case import Case
from .. import components
from ..patching import patched
from . import devices, parts
from .devices import Device, current
from .operations import OPERATIONS, Operations

PARAMETERS = "parameters."
WHOLE = ("recipe.", "strategy.")  # inputs without a batch axis


def answer(
    case: Case, operations: Operations = OPERATIONS, whole: Collection[str] = (),
) -> dict[str, np.ndarray]:  # fmt: skip
    """Returns the outputs of a case as the devices of `case.mesh` compute them with these
    operations.

    Replicated arrays are the first device's copies, split ones are assembled from all devices.
    whole: the tables that `model` does not split, as in `Device`. Raises ValueError like the
    reference and `reference_numpy.sharding.check`. Patches the reference, which nothing else may
    run meanwhile.
    """
    if case.mesh is None:
        raise ValueError(f"{case.id} must have a mesh")
    check(case.config, case.mesh)
    names = {id(array): name for name, array in case.parameters.items()}
    with patched(_REPLACED):
        found = devices.run(case.mesh, names, functools.partial(_on, case), operations, whole)
    return case.part(found[0])


def _on(case: Case, device: Device) -> dict[str, np.ndarray]:
    """Returns the whole outputs, assembled on a device."""
    if case.component == "training_steps":
        device.notes["steps"] = case
        return components.answer(dataclasses.replace(case, outputs=(), compared=""))
    count = rows_of(case)
    own = dataclasses.replace(case, inputs=_own_inputs(case, device, count), outputs=(), compared="")
    outputs = components.answer(own)
    placed = split_axes(case.config, device.mesh, case.component, device.whole)
    found = {}
    for name, array in outputs.items():
        if name.startswith(PARAMETERS):
            gradient = device.operations.data_gradient(device, name.removeprefix(PARAMETERS), array)
            found[name] = assembled(device, name.removeprefix(PARAMETERS), gradient, placed)
        else:
            found[name] = device.operations.rows(device, array, count) if array.ndim else array
    return found


def assembled(device: Device, name: str, gradient: np.ndarray, placed: Mapping[str, int]) -> np.ndarray:
    """Returns a whole gradient. placed: the split axes, by name."""
    if (axis := placed.get(name)) is None:
        return device.operations.whole_gradient(device, name, gradient)
    copies = device.all("model", gradient)
    own = chunks(gradient.shape[axis], device.mesh.model)
    return np.concatenate([copy[(slice(None),) * axis + (part,)] for copy, part in zip(copies, own, strict=True)], axis)


def split_axes(config: Any, mesh: Mesh, component: str, whole: Collection[str] = ()) -> dict[str, int]:
    """Returns the axis that `model` splits, by parameter. whole: as in `answer`."""
    component = components.model_of(components.forward_of(component) or component)
    try:
        placed = splits(config, mesh, component)
    except ValueError:
        return {}
    over_model = {name: [axis for axis, place in enumerate(split) if "model" in (place or ())] for name, split in placed.items()}
    return {name: axes[0] for name, axes in over_model.items() if axes and table(name) not in whole}


def table(name: str) -> str:
    """Returns the vocabulary table of a parameter: "embeddings", "logits", or empty."""
    if name.endswith("table"):
        return "embeddings"
    return "logits" if "." not in name or "logits." in name else ""


def rows_of(case: Case) -> int:
    """Returns the number of rows of the case's batch."""
    first = next(value for value in case.inputs.values() if isinstance(value, np.ndarray) and value.ndim)
    return len(first)


def _own_inputs(case: Case, device: Device, count: int) -> dict[str, Any]:
    taken, found = device.operations.own_rows(device, count), {}
    for name, value in case.inputs.items():
        rows = isinstance(value, np.ndarray) and value.ndim and len(value) == count and not name.startswith(WHOLE)
        if rows and name.startswith(("keep.", "keep_")):
            value = device.operations.keep(device, value)
        elif rows:
            value = value[taken]
        found[name] = value
    return found


def _taking(altered: Any) -> Any:
    """The altered function on a device; elsewhere the function itself."""

    def taken(original: Any, *args: Any, **options: Any) -> Any:
        device = current()
        return altered(device, original, *args, **options) if device else original(*args, **options)

    return taken


def _gradients(device: Device, original: Any, trainer: Any, source: Any, target: Any, keep: Any) -> Any:
    """`Trainer._gradients` on a device: the sum over its rows."""
    taken = device.operations.own_rows(device, len(target))
    flat = parameters.flatten(keep).items()
    masks = parameters.nest({site: device.operations.keep(device, mask) for site, mask in flat})
    trainer = copy.copy(trainer)  # microbatches do not change the math
    trainer.recipe = dataclasses.replace(trainer.recipe, microbatches=1)
    value, tree = original(trainer, None if source is None else source[taken], target[taken], masks)
    placed = split_axes(trainer.config, device.mesh, "transformer", device.whole)
    found = {}
    for name, gradient in parameters.flatten(tree).items():
        found[name] = assembled(device, name, device.operations.data_gradient(device, name, gradient), placed)
    return value, parameters.nest(found)


def _count(device: Device, original: Any, config: Any, target: Any) -> Any:
    """`training._count` of the whole batch, on a device."""
    return device.operations.label_count(device, original(config, target))


def _clip(device: Device, original: Any, tree: Any, limit: float) -> Any:
    """`clip_global_norm` on a device."""
    flat = parameters.flatten(tree)
    factors = device.operations.clip_factors(device, flat, limit)
    return parameters.nest({name: gradient * factors[name] for name, gradient in flat.items()})


def _norm_vjp(device: Device, original: Any, tree: Any, config: Any, x_btd: Any, *, cotangent: Any) -> Any:
    name = device.names.get(id(tree.get("scale")), "")
    if not name:  # a norm of queries and keys holds a part of its parameters, and others may have none
        return original(tree, config, x_btd, cotangent=cotangent)
    given = original, tree, config, x_btd, cotangent
    return device.operations.norm_gradient(device, name.removesuffix(".scale"), *given)


_REPLACED = {
    name: _taking(altered)
    for name, altered in {
        "attention.multi_head_attention": parts.attention,
        "attention.multi_head_attention_vjp": parts.attention_vjp,
        "attention.scaled_dot_product_attention": parts.dot_product,
        "attention.scaled_dot_product_attention_vjp": parts.dot_product,
        "attention.query_key_norm": parts.query_key_norm,
        "attention.query_key_norm_vjp": parts.query_key_norm,
        "feed_forward.feed_forward": parts.feed_forward,
        "feed_forward.feed_forward_vjp": parts.feed_forward_vjp,
        "experts.mixture_of_experts": parts.mixture_of_experts,
        "experts.mixture_of_experts_vjp": parts.mixture_of_experts_vjp,
        "embedding.embedding": parts.embedding,
        "embedding.embedding_vjp": parts.embedding_vjp,
        "embedding.logits": parts.logits,
        "embedding.logits_vjp": parts.logits_vjp,
        "loss.cross_entropy": parts.cross_entropy,
        "loss.cross_entropy_vjp": parts.cross_entropy_vjp,
        "positional_encoding.token_positions": lambda device, *own: device.operations.positions(device, *own),
        "normalization.norm_vjp": _norm_vjp,
        "training.Trainer._gradients": _gradients,
        "training._count": _count,
        "optimizer.clip_global_norm": _clip,
    }.items()
}
