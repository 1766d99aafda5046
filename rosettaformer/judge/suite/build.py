"""Builds cases: sizes, random values, masks."""

import dataclasses
import functools
import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy.suggestions import unknown

from ...common.memory import physical_memory
from ..case import DTYPES, Case
from ..expectation.components import ASKED, answer, model_of, takes_config

B, T, S = 3, 5, 7
ROWS = 211  # rows of a port's learned position table: enough for the longest case
SIZES = {
    "source_vocabulary": 29, "target_vocabulary": 23, "model_width": 13, "key_size": 5, "value_size": 11, "feed_forward_width": 19,
    "encoder_layers": 2, "decoder_layers": 2,
}  # fmt: skip
# names of cases that are evaluated twice
TWICE = ("plain", "post", "relu", "cross", "final_norm", "nn_transformer", "feed_forward_dropout", "hidden_dropout", "attention_dropout")

# Replaces a preset's name in the case names that seed random data.
SEEDS = {
    "nn_transformer": "hmbapjzrj",
    "separate_tables": "{:5eq",
    "unscaled_embedding": "hukjalqbv",
    "feed_forward_dropout": "pogysxl",
    "one_encoder_layer": "knnhczy",
}
PROJECTIONS = ("query.kernel", "key.kernel", "value.kernel")  # kernels that all heads may share, each applied to its slice of the width


class Builder:
    """Makes configs and cases that use the config values a port fixes.

    fixed: config fields by name. Sizes adapt to them silently. A case that needs another value of
    any other fixed field, or whose values make an invalid config with them, keeps its own values,
    and `all_cases` excludes it with the reason. shared: the ends of the names of kernels that all
    heads of the port share. conflict: why the first such config was invalid; "" if none was.

    Raises ValueError for unknown config fields.
    """

    def __init__(self, fixed: Mapping[str, Any], shared: Sequence[str] = ()) -> None:
        fixed = TransformerConfig.apart(fixed)
        if problems := unknown("config field", fixed, preset("tiny").to_dict()):
            raise ValueError("; ".join(problems))
        self.fixed, self.conflict, self._shared = fixed, "", shared
        self._taken = 0  # total size of the cases so far, in bytes

    def config(self, dialect: str = "nn_transformer", usual: Mapping[str, Any] | None = None, /, **changes: Any) -> TransformerConfig:
        """Returns a dialect's config with distinct sizes, so that axes cannot be confused.

        usual: fields for which the port's fixed values take precedence.
        """
        usual = usual or {}
        try:
            config = _merged(dialect, changes, self.fixed, usual)
        except ValueError as error:
            if not self.fixed:
                raise
            self.conflict = self.conflict or str(error)
            return _merged(dialect, changes, {}, usual)
        if self.fixed:  # before allocating anything
            self._require_room(8 * _parameter_count(config))
        return config

    def _require_room(self, size: int) -> None:
        """Raises ValueError if the cases with that many more bytes are too large."""
        most = physical_memory() // 2
        if self.fixed and self._taken + size > most:
            raise ValueError(f"its cases may take at most half of the memory, {most} bytes; they need at least {self._taken + size}")

    def make(
        self, component: str, name: str, config: TransformerConfig, catches: str = "", fixed: Any = None,
        release: int = 1, dtypes: tuple[str, ...] = DTYPES, **inputs: Any,
    ) -> Case:  # fmt: skip
        """Returns a case. Floating inputs, given as axes ("b 1 d") or a shape, are drawn.

        fixed: parameters that are not drawn, by canonical name. release, dtypes: see `Case`.
        """
        generator = rng(f"{component}/{name}")
        sizes = {"b": B, "t": T, "s": S, "v": config.source_vocabulary} | config.sizes
        shapes = {
            key: tuple(int(axis) if axis.isdigit() else sizes[axis] for axis in value.split())
            for key, value in inputs.items()
            if isinstance(value, str)
        }
        shapes |= {key: value for key, value in inputs.items() if isinstance(value, tuple)}
        self._require_room(8 * sum(map(math.prod, shapes.values())))
        drawn = {key: generator.standard_normal(shapes[key]) if key in shapes else value for key, value in inputs.items()}
        try:
            values = parameters_of(config, component, generator)
        except ValueError:  # the component has no parameters
            values = {}
        kernels = tuple(
            name for name in values if name.endswith(PROJECTIONS) and any(f".{name}".endswith(f".{end}") for end in self._shared)
        )
        values |= {name: _one_block(values[name]) for name in kernels if not values[name].shape[0] % values[name].shape[1]}
        active_dropout = component != "dropout" and config.dropout_rate > 0
        case = Case(
            name, component, config, drawn, values | (fixed or {}), tuple(catches.split()), dtypes,
            core=name in ASKED[component].core, twice=active_dropout and name in TWICE, release=release, shared=kernels,
        )  # fmt: skip
        self._taken += case.size
        return case


def _merged(dialect: str, changes: Mapping[str, Any], fixed: Mapping[str, Any], usual: Mapping[str, Any]) -> TransformerConfig:
    """Returns the dialect with changes and fixed fields. A stack's depth is a size.

    usual: see `Builder.config`.
    """
    given, fixed, own = fixed, {**usual, **fixed}, _fields(dialect)
    changes = TransformerConfig.apart(changes)
    soft = {name: value for name, value in changes.items() if name in SIZES and value}
    hard = {name: value for name, value in changes.items() if name not in soft}
    merged = own | SIZES | {"heads": 3, "padding_id": 2} | soft | dict(fixed) | hard
    if "key_value_heads" not in hard and "key_value_heads" not in fixed:
        merged["key_value_heads"] = merged["heads"]
    if merged["share_embeddings"] and "target_vocabulary" not in fixed:
        merged["target_vocabulary"] = merged["source_vocabulary"]
    for name in ("encoder_layers", "decoder_layers"):
        if name not in soft and name not in fixed:
            merged[name] = min(merged[name], own[name])
    return TransformerConfig.from_dict(merged | _fitting(merged, {*given, *hard}) if given else merged)


@functools.cache
def _fields(dialect: str) -> dict[str, Any]:
    """Returns the fields of a preset."""
    return preset(dialect).to_dict()


def _fitting(merged: Mapping[str, Any], held: Collection[str]) -> dict[str, Any]:
    """Returns sizes that the positions require: an even head size, a table of positions."""
    found: dict[str, Any] = {}
    if merged["positions"] == "rotary" and merged["key_size"] % 2 and "key_size" not in held:
        found["key_size"] = merged["key_size"] + 1
    if (merged["positions"] == "learned") != bool(merged["max_positions"]) and "max_positions" not in held:
        found["max_positions"] = ROWS if merged["positions"] == "learned" else 0
    return found


def _parameter_count(config: TransformerConfig) -> int:
    """Returns the number of scalars of a model without listing all its layers."""
    one = {"encoder_layers": min(1, config.encoder_layers), "decoder_layers": min(1, config.decoder_layers)}
    first = parameters.count(config.replace(**one))
    more = ((name, getattr(config, name) - layers) for name, layers in one.items())
    return first + sum(count * (parameters.count(config.replace(**one | {name: one[name] + 1})) - first) for name, count in more if count)


def rng(case_id: str) -> np.random.Generator:
    """Returns a case's random generator: the same values everywhere, whatever other cases exist."""
    for name, word in SEEDS.items():
        case_id = case_id.replace(name, word)
    return np.random.default_rng(zlib.crc32(case_id.encode()))


def parameters_of(config: TransformerConfig, component: str, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns random parameters, including biases and scales, large enough to affect the output."""
    values = {}
    for name, shape in parameters.shapes(config, model_of(component)).items():
        kind, value = name.rpartition(".")[2], generator.standard_normal(shape)
        if kind == "kernel":
            value *= 1.3 / math.sqrt(math.prod(shape) / shape[-1] if len(shape) == 2 else config.model_width)
        values[name] = {"scale": 1 + 0.4 * value, "bias": 0.5 * value, "offset": 0.5 * value}.get(kind, value)
    return values


def _one_block(kernel_dhk: np.ndarray) -> np.ndarray:
    """Returns the kernel in which each head has the first head's block on its own slice."""
    width, heads = kernel_dhk.shape[:2]
    size = width // heads
    found = np.zeros_like(kernel_dhk)
    for head in range(heads):
        found[head * size : (head + 1) * size, head] = math.sqrt(heads) * kernel_dhk[:size, 0]
    return found


def ragged(batch: int, length: int) -> np.ndarray:
    """Returns right padding: row i lacks its last 2 i tokens but keeps its first. True = real."""
    return np.arange(length) < np.maximum(length - 2 * np.arange(batch), 1)[:, None]


def padded_columns(batch: int, length: int) -> np.ndarray:
    """Returns right padding: row i lacks its last 2 + i tokens, but not its first. True = real."""
    return np.arange(length) < np.maximum(length - 2 - np.arange(batch), 1)[:, None]


def left_padding(batch: int, length: int) -> np.ndarray:
    """Returns left padding: row i lacks its first i tokens, the last all. True = real."""
    mask = np.arange(length) >= np.arange(batch)[:, None]
    mask[-1] = False
    return mask


def shrinking_padding(batch: int, length: int) -> np.ndarray:
    """Returns left padding: each row lacks one token less, the last none. True = real."""
    return left_padding(batch + 1, length)[-2::-1]


def inside_padding(batch: int, length: int) -> np.ndarray:
    """Returns padding inside rows: every second token after the first i. True = real."""
    place = np.arange(length) - np.arange(batch)[:, None]
    return (place < 0) | (place % 2 == 0)


NAMED = 3  # the most config fields that a reason lists


def excluded(case: Case, fixed: Mapping[str, Any], whose: str = "") -> Case:
    """Returns the case, with the reason if it is excluded. whose: introduces its own values."""
    if not (fixed or case.shared) or not reads_config(case):
        return case
    own = case.config.to_dict()
    others = {name: value for name, value in TransformerConfig.apart(fixed).items() if own[name] != value}
    fields = [f"{name}={value!r}" for name, value in others.items()]
    more = f" and {len(others) - NAMED} others" if len(others) > NAMED + 1 and not whose else ""
    split = [name for name in case.shared if case.parameters[name].shape[0] % case.parameters[name].shape[1]]
    reason = f"the port fixes {', '.join(fields[:NAMED] if more else fields)}{more}" if others else _refused(case) if fixed else ""
    if others and whose:
        reason += f"; {whose} {', '.join(f'{name}={own[name]!r}' for name in others)}"
    if split and not reason:
        reason = f"all heads of the port share {split[0]}, one slice of the width each; this case's width is not divisible by its heads"
    return dataclasses.replace(case, excluded=reason) if reason else case


def reads_config(case: Case) -> bool:
    """Whether a case depends on its config, so that a port's fixed fields can exclude it.

    Inputs with an axis of heads (h, g) depend on the config.
    """
    suffixes = {name.rpartition("_")[2]: value for name, value in case.inputs.items() if "_" in name}
    heads = any({*axes} & {"h", "g"} and np.ndim(value) == len(axes) for axes, value in suffixes.items())
    return bool(heads or case.parameters or ASKED[case.component].arguments or takes_config(case.component))


def _refused(case: Case) -> str:
    """Returns why the reference rejects the case with the fixed fields; "" if it does not."""
    try:
        if takes_config(case.component):
            answer(case)
    except ValueError as error:
        return f"with the values that the port fixes: {error}"
    return ""
