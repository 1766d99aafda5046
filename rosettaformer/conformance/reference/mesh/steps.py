"""Steps of training on a mesh: what a trainer does besides the model and its loss."""

import copy
import dataclasses
from typing import Any

from reference_numpy import parameters

from .devices import Device


def gradients(device: Device, original: Any, trainer: Any, source: Any, target: Any, keep: Any) -> Any:
    """`Trainer._gradients` on a device: of its rows, added up."""
    from .run import assembled, split_axes

    taken = device.operations.own_rows(device, len(target))
    flat = parameters.flatten(keep).items()
    masks = parameters.nest({site: device.operations.keep(device, mask) for site, mask in flat})
    trainer = copy.copy(trainer)  # parts of a batch's part are no part of the mathematics
    trainer.recipe = dataclasses.replace(trainer.recipe, microbatches=1)
    value, tree = original(trainer, None if source is None else source[taken], target[taken], masks)
    placed = split_axes(trainer.config, device.mesh, "transformer", device.whole)
    found = {}
    for name, gradient in parameters.flatten(tree).items():
        found[name] = assembled(device, name, device.operations.data_gradient(device, name, gradient), placed)
    return value, parameters.nest(found)


def count(device: Device, original: Any, config: Any, target: Any) -> Any:
    """`training._count` on a device: of the whole batch."""
    return device.operations.label_count(device, original(config, target))


def clip(device: Device, original: Any, tree: Any, limit: float) -> Any:
    """`clip_global_norm` on a device."""
    flat = parameters.flatten(tree)
    factors = device.operations.clip_factors(device, flat, limit)
    return parameters.nest({name: gradient * factors[name] for name, gradient in flat.items()})


REPLACED = {"training.Trainer._gradients": gradients, "training._count": count, "optimizer.clip_global_norm": clip}
