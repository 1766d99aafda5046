"""Checks that tensors are a model's parameters, and infers the config from them."""

import contextlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from reference_numpy import TransformerConfig, parameters

from ...common.memory import physical_memory
from .container import release

DTYPES = ("float64", "float32", "bfloat16", "float16")
WIDE = "selection_bias"  # parameters that may be float32 in a half-precision model, by the end of their name
_PART = 1 << 22  # elements checked at a time


def numpy_dtype(name: str) -> np.dtype:
    """Returns the NumPy dtype with this name, including bfloat16."""
    return np.dtype(getattr(ml_dtypes, name, name))


def problems(tensors: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]], dtype: str | None = None) -> list[str]:
    """Returns all problems of tensors that should have the expected names and shapes.

    dtype: the target dtype; values that overflow it are reported.
    """
    wide = [name for name in expected if name.endswith(WIDE)]
    return [*parameters.mismatches(tensors, expected), *content_problems(tensors, expected, wide), *_overflow_problems(tensors, dtype)]


def _overflow_problems(tensors: Mapping[str, np.ndarray], dtype: str | None) -> Iterator[str]:
    """Reports the tensors whose largest finite value overflows the dtype."""
    for name, array in tensors.items():
        if dtype and array.size:
            with np.errstate(over="ignore", invalid="ignore"):
                largest = np.array([array.max(), array.min()]).astype(numpy_dtype(dtype))
            if np.isinf(largest.astype(np.float64)).any() and np.isfinite(array).all():
                yield f"values are too large for {dtype} in {name}; choose another --dtype"
            release(array)


def content_problems(
    tensors: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]], wide: Collection[str] = ()
) -> list[str]:  # fmt: skip
    """Reports tensors with an unsupported or inconsistent dtype, and tensors with NaN or infinity.

    Values are read only if the tensors are no larger than expected and fit into memory. wide:
    tensors that may be float32 whatever the others are.
    """
    labels, dtypes, known, size = dict[Any, str](), dict[str, str](), list[str](), 0
    for name, array in tensors.items():
        dtypes[name] = labels[array.dtype] = labels.get(array.dtype) or str(array.dtype)
        if array.size <= math.prod(expected.get(name, (0,))):
            known.append(name)
            size += array.nbytes
    counts = Counter(dtype for dtype in dtypes.values() if dtype in DTYPES).most_common(1)
    found = []
    for name, dtype in dtypes.items():
        if dtype not in DTYPES:
            found.append(f"{name} must be one of {', '.join(DTYPES)}; got {dtype}")
        elif dtype != counts[0][0] and (dtype != "float32" or name not in wide):
            found.append(f"{name} must be {counts[0][0]} like most tensors; got {dtype}")
    if size > (room := physical_memory()):
        return [*found, f"the model does not fit into memory: {room / 1e9:.1f} GB are installed, its tensors need {size / 1e9:.1f} GB"]
    return [*found, *_value_problems((name, tensors[name]) for name in known)]


def _value_problems(tensors: Iterable[tuple[str, np.ndarray]]) -> Iterator[str]:
    for name, array in tensors:
        nans, infinite = 0, 0
        rows = max(1, _PART // max(1, math.prod(array.shape[1:])))  # bounds the memory in use
        whole = array if array.ndim else array[None]
        starts = range(0, len(whole), rows) if str(array.dtype) in DTYPES else ()
        for part in (whole[start : start + rows] for start in starts):
            if not np.isfinite(part).all():
                nans, infinite = nans + int(np.isnan(part).sum()), infinite + int(np.isinf(part).sum())
            release(part)
        if nans or infinite:
            yield f"{name} must be finite; got {nans} NaN and {infinite} infinite of {array.size} values"


_FIELDS = {
    "d": "model_width", "r": "model_width", "h": "heads", "g": "key_value_heads", "k": "key_size", "e": "value_size",
    "f": "feed_forward_width", "x": "experts", "m": "expert_width", "w": "shared_width", "c": "classes",
}  # fmt: skip

# config fields that show in the presence of a tensor of a stack, by the end of its name
_SHOWN = {
    "query_key_value_bias": "attention.query.bias", "attention_output_bias": "attention.output.bias", "feed_forward_bias": ".hidden.bias",
    "gated_feed_forward": ".gate.kernel", "norm_scale": "_norm.scale",
    "norm_offset": "_norm.offset", "final_norm": "final_norm.scale",
}  # fmt: skip


def contradictions(config: TransformerConfig, tensors: Mapping[str, np.ndarray]) -> tuple[TransformerConfig, list[str]]:
    """Returns the config that the tensors imply, and one line for each field that differs."""
    shown, believed = _layers(config, tensors), config
    if _numbers(tensors, "encoder") or _numbers(tensors, "decoder"):
        stacks = [name for name in tensors if name.startswith(("encoder.", "decoder."))]
        shown |= {field: any(name.endswith(end) for name in stacks) for field, end in _SHOWN.items()}
        if not shown["norm_scale"]:
            del shown["final_norm"]  # a norm without parameters does not show
    with contextlib.suppress(ValueError):  # tensors that imply no valid config are reported singly
        believed = config.replace(**shown | {"encoder_layers": shown["encoder_layers"] or min(1, config.encoder_layers)})
        sizes = _sizes(believed, tensors)
        believed, shown = believed.replace(**sizes), shown | sizes
    lines = [
        f"the config contradicts the tensors: {name} is {value!r}, but the tensors have {shown[name]!r}"
        for name, value in config.to_dict().items()
        if shown.get(name, value) != value
    ]
    return believed, lines


def contiguous_layers(names: Iterable[str], stack: str) -> int:
    """Counts the layers 0, 1, 2, ... of a stack ("encoder" or "decoder") up to the first gap."""
    present = _numbers(names, stack)
    return next(index for index in range(len(present) + 1) if index not in present)


def _numbers(names: Iterable[str], stack: str) -> set[int]:
    return {int(found[1]) for name in names if (found := re.match(rf"{stack}\.layers\.(\d{{1,4}})\.", name))}


def _layers(config: TransformerConfig, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns the declared layer counts, or the tensors' if the last layer differs."""
    shown = {}
    for stack in ("encoder", "decoder"):
        shown[f"{stack}_layers"] = declared = getattr(config, f"{stack}_layers")
        present = _numbers(tensors, stack)
        if (present and max(present) + 1 != declared) or declared > len(tensors):
            shown[f"{stack}_layers"] = contiguous_layers(tensors, stack)
    return shown


def _sizes(config: TransformerConfig, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns the sizes on which all tensors of an axis agree; one tensor alone proves nothing."""
    found: dict[str, list[int]] = defaultdict(list)
    for name, letters in parameters.axes(config).items():
        shape = tensors[name].shape if name in tensors else ()
        if len(shape) == len(letters.split()):
            vocabulary = "source_vocabulary" if name.startswith(("source_embedding", "masked_language_head")) else "target_vocabulary"
            fields = _FIELDS | {"v": vocabulary}
            for letter, size in zip(letters.split(), shape, strict=True):
                if letter in fields:  # leaves out positions: each stack has its own table
                    found[fields[letter]].append(size)
    return {field: sizes[0] for field, sizes in found.items() if len(sizes) > 1 and len(set(sizes)) == 1}
