"""Which config the tensors of a file speak for, so that a wrong config is named once and not once a tensor."""

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters

__all__ = ["contiguous_layers", "contradictions"]

_FIELDS = {"d": "model_width", "h": "heads", "g": "key_value_heads", "k": "key_size", "e": "value_size", "f": "feed_forward_width"}


def contradictions(config: TransformerConfig, tensors: Mapping[str, np.ndarray]) -> tuple[TransformerConfig, list[str]]:
    """The config that the tensors show, and a line for each field in which the given one differs."""
    shown = _layers(config, tensors) | _switches(tensors)
    believed = config.replace(**shown | {"encoder_layers": shown["encoder_layers"] or 1})
    with contextlib.suppress(ValueError):  # where the tensors agree on no valid config, they are reported one by one
        sizes = _sizes(believed, tensors)
        believed, shown = believed.replace(**sizes), shown | sizes
    lines = [
        f"config contradicts the tensors: {name} is {value!r}, but the tensors have {shown[name]!r}"
        for name, value in config.to_dict().items()
        if shown.get(name, value) != value
    ]
    return believed, lines


def contiguous_layers(names: Iterable[str], stack: str) -> int:
    """The number of layers 0, 1, 2, ... of encoder or decoder that have tensors."""
    present = _numbers(names, stack)
    return next(index for index in range(len(present) + 1) if index not in present)


def _numbers(names: Iterable[str], stack: str) -> set[int]:
    return {int(found[1]) for name in names if (found := re.match(rf"{stack}\.layers\.(\d{{1,4}})\.", name))}


def _layers(config: TransformerConfig, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The declared numbers of layers, unless the tensors end with another layer: one that is lost in between is missing."""
    shown = {}
    for stack in ("encoder", "decoder"):
        shown[f"{stack}_layers"] = declared = getattr(config, f"{stack}_layers")
        present = _numbers(tensors, stack)
        if (present and max(present) + 1 != declared) or declared > len(tensors):
            shown[f"{stack}_layers"] = contiguous_layers(tensors, stack)
    return shown


def _switches(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    if not _numbers(tensors, "encoder"):
        return {}
    return {
        "attention_bias": any(name.endswith("attention.query.bias") for name in tensors),
        "final_norm": any(name.endswith("final_norm.scale") for name in tensors),
    }


def _sizes(config: TransformerConfig, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The sizes on which all tensors of an axis agree, of which there must be two: one alone may as well be the wrong one."""
    found: dict[str, list[int]] = defaultdict(list)
    for name, letters in parameters.axes(config).items():
        shape = tensors[name].shape if name in tensors else ()
        if len(shape) == len(letters.split()):
            for letter, size in zip(letters.split(), shape, strict=True):
                found[_FIELDS.get(letter) or _vocabulary(name)].append(size)
    return {field: sizes[0] for field, sizes in found.items() if len(sizes) > 1 and len(set(sizes)) == 1}


def _vocabulary(name: str) -> str:
    return "source_vocabulary" if name.startswith("source_embedding") else "target_vocabulary"
