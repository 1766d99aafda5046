"""Which config the tensors of a file speak for, so that a wrong config is named once and not once a tensor."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from reference_numpy import TransformerConfig, parameters

from .strict import TensorLike

__all__ = ["contiguous_layers", "contradictions"]

_FIELDS = {"d": "model_width", "h": "heads", "g": "key_value_heads", "k": "key_size", "e": "value_size", "f": "feed_forward_width"}
_MANY_NAMES = ("attention_bias", "final_norm")  # switches on which enough tensors depend to tell a wrong switch from a lost tensor


def contradictions(config: TransformerConfig, tensors: Mapping[str, TensorLike]) -> tuple[TransformerConfig, list[str]]:
    """The config that most tensors agree on, and a line for each field in which the given one differs.

    A field on which too few tensors speak keeps its value; its tensors then do not match, and are reported by name.
    """
    believed = config
    for change in (_layers, _switches, _sizes):
        try:
            believed = believed.replace(**change(believed, tensors))
        except ValueError:  # the tensors agree on no valid config: report them one by one
            return _bounded(config, tensors), []
    lines = [
        f"config contradicts the tensors: {name} is {value!r}, but the tensors have {getattr(believed, name)!r}"
        for name, value in config.to_dict().items()
        if getattr(believed, name) != value
    ]
    return believed, lines


def contiguous_layers(names: Iterable[str], stack: str) -> int:
    """The number of layers 0, 1, 2, ... of encoder or decoder that have tensors."""
    pattern = re.compile(re.escape(stack) + r"\.layers\.(\d{1,9})\.")
    present = {int(found[1]) for name in names if (found := pattern.match(name))}
    return next(index for index in range(len(present) + 1) if index not in present)


def _bounded(config: TransformerConfig, tensors: Mapping[str, TensorLike]) -> TransformerConfig:
    """A config with no more layers than there are tensors: a file's word must not make us enumerate a billion names."""
    limit = len(tensors) + 1
    return config.replace(encoder_layers=min(config.encoder_layers, limit), decoder_layers=min(config.decoder_layers, limit))


def _layers(config: TransformerConfig, tensors: Mapping[str, TensorLike]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for stack in ("encoder", "decoder"):
        field, found = f"{stack}_layers", contiguous_layers(tensors, stack)
        unlike = getattr(config, field) > len(tensors) or (
            found and _distance(config, tensors, **{field: found}) < _distance(config, tensors)
        )
        if unlike:
            changes[field] = max(found, 1 if stack == "encoder" else 0)
    return changes


def _switches(config: TransformerConfig, tensors: Mapping[str, TensorLike]) -> dict[str, Any]:
    flipped = {name: not getattr(config, name) for name in _MANY_NAMES}
    return {name: value for name, value in flipped.items() if _distance(config, tensors, **{name: value}) < _distance(config, tensors)}


def _distance(config: TransformerConfig, tensors: Mapping[str, TensorLike], **changes: Any) -> int:
    """In how many names the tensors differ from those of the changed config."""
    return len(parameters.axes(_bounded(config, tensors).replace(**changes)).keys() ^ tensors.keys())


def _sizes(config: TransformerConfig, tensors: Mapping[str, TensorLike]) -> dict[str, Any]:
    """Sizes by the majority of the tensors, of which there must be two: one alone may as well be the wrong one."""
    votes: dict[str, Counter[int]] = defaultdict(Counter)
    shapes = parameters.shapes(config)
    for name, letters in parameters.axes(config).items():
        shape = tuple(tensors[name].shape) if name in tensors else ()
        permuted = shape != shapes[name] and sorted(shape) == sorted(shapes[name])
        if len(shape) == len(letters.split()) and not permuted:
            for letter, size in zip(letters.split(), shape, strict=True):
                votes[_FIELDS.get(letter) or _vocabulary(config, name)][size] += 1
    changes: dict[str, Any] = {}
    for field, counter in votes.items():
        size, count = counter.most_common(1)[0]
        if count > max(1, counter.total() / 2):
            changes |= {"source_vocabulary": size, "target_vocabulary": size} if field == "vocabulary" else {field: size}
    return changes


def _vocabulary(config: TransformerConfig, name: str) -> str:
    if config.share_embeddings:
        return "vocabulary"
    return "source_vocabulary" if name.startswith("source_embedding") else "target_vocabulary"
