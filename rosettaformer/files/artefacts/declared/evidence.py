"""Evidence for numbers and tables among the constants of an exported model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from reference_numpy import TransformerConfig

from ...checkpoints.hugging_face.families import FAMILIES
from ..constants.reading import Constants
from . import words

COMMON = {0.0, 1.0, 2.0, -1.0, -2.0, 0.5, -0.5}  # numbers that prove nothing, since every graph has them
SCALARS = 16  # elements of an array that may be individual numbers
RTOL = 4e-6  # for numbers: float32 rounds them and their inputs
HALF_RTOL = 1e-2  # for numbers in half precision: bfloat16 rounds them and their inputs by 2^-9
# for tables: half precision rounds each element; a scaling is a difference of float32 numbers
TABLE_RTOL = {"float16": 2e-3, "bfloat16": HALF_RTOL}
FLOAT_RTOL = 1e-4
_ROUNDINGS = (np.float32, np.float16, ml_dtypes.bfloat16)
_HALF = {"float16", "bfloat16", "f16", "bf16"}


class Finding(NamedTuple):
    """The config field of an entry that the graph cannot contain, or "precision" or "weights"."""

    field: str
    sentence: str


class Table(NamedTuple):
    """An array of numbers that are not whole. row: position 1, if it has one row per position."""

    numbers: np.ndarray
    row: np.ndarray
    rtol: float


class Evidence:
    """A config and the constants of an exported model."""

    def __init__(self, config: TransformerConfig, constants: Constants, config_json: Mapping[str, Any]) -> None:
        self.config, self.constants, self.said = config, constants, config_json
        family = FAMILIES.get(config_json.get("model_type", ""))
        self._entries = family.entry_names() if family else {}

    @cached_property
    def scalars(self) -> np.ndarray:
        """All scalars, including the elements of small arrays and the value of constant arrays."""
        return self._numbers("biufc")

    def floats(self, value: float) -> bool:
        """Whether the graph contains this float."""
        return bool((self._numbers("fc") == value).any())

    def whole(self, value: int) -> bool:
        """Whether the graph contains this integer, or a tensor side of this size."""
        return bool((self._numbers("iu") == value).any()) or value in self.sides

    @cached_property
    def sides(self) -> set[int]:
        """The sizes of tensors."""
        return {side for weight in self.constants.weights.values() for side in weight.shape}

    def named(self, field: str) -> bool:
        """Whether config.json has an entry for exactly this field."""
        return not self.said or field in self._entries

    def _numbers(self, kinds: str) -> np.ndarray:
        found: list[np.ndarray] = []
        for _, value in self.constants.values:
            flat = _plain(value)
            if value.dtype.kind not in kinds and value.dtype != ml_dtypes.bfloat16:
                continue
            if flat.size <= SCALARS:
                found.append(flat)
            elif (flat == flat[0]).all():
                found.append(flat[:1])
        return np.unique(np.concatenate(found)) if found else np.zeros(0)

    @cached_property
    def tables(self) -> list[Table]:
        """Arrays that may hold frequencies, or cosines and sines of angles by position."""
        size = self.config.key_size
        return [table for _, value in self.constants.values if value.size > 1 for table in _tables(value, size)]

    def holds(self, *values: float) -> bool:
        """Whether the graph has one of these numbers in any precision, or rounding hides them."""
        with np.errstate(over="ignore"):
            rounded = [value for given in values for value in (given, *(float(kind(given)) for kind in _ROUNDINGS))]
        if self.half and any(value in COMMON for value in rounded):
            return True
        return any(np.isclose(self.scalars, value, rtol=RTOL, atol=0).any() for value in rounded if value not in COMMON)

    @cached_property
    def half(self) -> bool:
        """Whether the graph uses half precision, in which small numbers become 0."""
        dtypes = {weight.dtype for weight in self.constants.weights.values()} | {str(value.dtype) for _, value in self.constants.values}
        return bool(dtypes & _HALF)

    def in_table(self, numbers: Iterable[float]) -> bool:
        """Whether a single table has all of these numbers."""
        wanted = np.array([*numbers])
        return any(_within(wanted, table.numbers, table.rtol) for table in self.tables)

    def finding(self, field: str, value: str, looked: Sequence[float | str], inside: Sequence[str] = (), holds: str = "") -> Finding:
        """Returns a finding.

        value: the field's, used if config.json has no plain one. looked: the forms searched for.
        inside: the parts of rope_parameters that may set it. holds: what the graph has instead.
        """
        things = dict.fromkeys(one if isinstance(one, str) else f"{one:.6g}" for one in looked)
        sentence = words.ABSENT.format(says=self.says(field, value, inside), looked=words.either([*things]))
        return Finding(field, sentence + (f", but {holds}" if holds else ""))

    def says(self, field: str, value: str, inside: Sequence[str] = ()) -> str:
        """Returns what the config's entry says, in words."""
        entry = self._entries.get(field, field)
        return f"{'config.json' if self.said else 'the config'} says {_said(self.said, entry, inside) or f'{entry} {value}'}"


def _said(said: Mapping[str, Any], entry: str, inside: Sequence[str]) -> str:
    """Returns an entry and its value, possibly within rope_parameters; empty if there is none."""
    outer = [part for name in ("rope_scaling", "rope_parameters") if isinstance(part := said.get(name), Mapping)]
    parts = {f" of {name}": deep for part in outer for name in inside if isinstance(deep := part.get(name), Mapping)}
    for of, place in [*parts.items(), *(("", part) for part in (*outer, said))]:
        names = (entry, "rope_theta") if entry == "rope_local_base_freq" else (entry,)
        if name := next((name for name in names if isinstance(place.get(name), int | float | str)), ""):
            return f"{name}{of} {place[name]}"
    return ""


def _plain(value: np.ndarray) -> np.ndarray:
    """Flattens an array to float64, a complex one to its real and imaginary parts."""
    flat = value.ravel()
    if np.iscomplexobj(flat):
        flat = np.concatenate([flat.real, flat.imag])
    return flat.astype(np.float64)


def _tables(value: np.ndarray, size: int) -> Iterator[Table]:
    numbers = _plain(value)
    if not np.isfinite(numbers).all() or (numbers == np.round(numbers)).all():
        return
    rtol, squeezed = TABLE_RTOL.get(str(value.dtype), FLOAT_RTOL), value.squeeze()
    if numbers.size <= 2 * size:
        yield Table(np.unique(numbers), numbers, rtol)
    for turned in (squeezed, squeezed.T) if squeezed.ndim > 1 else ():
        if len(np.unique(_plain(turned[0]))) <= 3:
            yield Table(np.unique(numbers), _plain(turned[1]), rtol)


def _within(wanted: np.ndarray, table: np.ndarray, rtol: float) -> bool:
    place = np.searchsorted(table, wanted)
    nearest = [table[np.clip(place + step, 0, len(table) - 1)] for step in (-1, 0)]
    return bool(np.logical_or.reduce([np.isclose(near, wanted, rtol=rtol, atol=1e-12) for near in nearest]).all())
