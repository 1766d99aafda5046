"""What an artefact's constants show of a number or a table."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from reference_numpy import TransformerConfig

from ...checkpoints.hugging_face.families import FAMILIES
from ..constants.reading import Constants

COMMON = {0.0, 1.0, 2.0, -1.0, -2.0, 0.5, -0.5}  # in every graph
SCALARS = 16  # elements of an array that may be numbers side by side
RTOL = 4e-6  # of a number: float32 rounds it, and what it is computed from
# of a table: half precision rounds each element; a scaling is a difference of numbers that float32 rounded
_TABLE_RTOL = {"float16": 2e-3, "bfloat16": 1e-2}
TABLE_RTOL = 1e-4
_ROUNDINGS = (np.float32, np.float16, ml_dtypes.bfloat16)


class Finding(NamedTuple):
    """A field of the config whose entry the graph cannot contain, and that in a sentence."""

    field: str
    sentence: str


class Evidence:
    """A config beside the constants of an artefact."""

    def __init__(self, config: TransformerConfig, constants: Constants, config_json: Mapping[str, Any]) -> None:
        self.config, self.constants, self.said = config, constants, config_json
        family = FAMILIES.get(config_json.get("model_type", ""))
        self._entries = family.entry_names() if family else {}
        self._family = family

    @cached_property
    def scalars(self) -> np.ndarray:
        """Every number: of few side by side, or the one that fills a tensor."""
        found: list[np.ndarray] = []
        for _, value in self.constants.values:
            flat = _plain(value)
            if flat.size <= SCALARS:
                found.append(flat)
            elif (flat[:1] == flat).all():
                found.append(flat[:1])
        return np.unique(np.concatenate(found)) if found else np.zeros(0)

    @cached_property
    def tables(self) -> list[tuple[np.ndarray, float]]:
        """Every array of numbers that are not whole, flat, with the tolerance of its dtype."""
        flat = [(_plain(value), _TABLE_RTOL.get(str(value.dtype), TABLE_RTOL)) for _, value in self.constants.values if value.size > 1]
        return [(np.unique(table), rtol) for table, rtol in flat if (table != np.round(table)).any()]

    def holds(self, *values: float) -> bool:
        """Whether a number is one of these, in any precision; also where a precision of the graph makes it 0."""
        rounded = [value for given in values for value in (given, *(float(kind(given)) for kind in _ROUNDINGS))]
        if any(value == 0 for value in rounded) and self.half:
            return True
        return any(np.isclose(self.scalars, value, rtol=RTOL, atol=0).any() for value in rounded if value)

    @cached_property
    def half(self) -> bool:
        """Whether the graph computes in half precision, in which small numbers are 0."""
        dtypes = {weight.dtype for weight in self.constants.weights.values()} | {str(value.dtype) for _, value in self.constants.values}
        return bool(dtypes & {"float16", "bfloat16", "f16", "bf16"})

    def in_table(self, numbers: Iterable[float]) -> bool:
        """Whether one table has all of these numbers."""
        wanted = np.array([*numbers])
        return any(_within(wanted, table, rtol) for table, rtol in self.tables)

    def finding(self, field: str, said: str, looked: Sequence[float | str], inside: Sequence[str] = ()) -> Finding:
        """Returns a finding. said: the field's value, where config.json has no number of its own. looked: for what."""
        entry = self._entries.get(field, field)
        value = _inner(self.said, entry, inside)
        name = "config.json" if self.said else "the config"
        if value is None:
            says = f"{name} says {entry} {said}"
        else:
            says = f"{name} says {entry} {value}"
        things = [one if isinstance(one, str) else f"{one:.6g}" for one in looked]
        return Finding(field, f"{says}; the graph holds no {_listed([*dict.fromkeys(things)])}")


def _inner(said: Mapping[str, Any], entry: str, inside: Sequence[str]) -> Any:
    """Returns the value of an entry: of its own, or within rope_parameters; None if it is no plain value."""
    places = [said, *(part for name in ("rope_scaling", "rope_parameters") if isinstance(part := said.get(name), Mapping))]
    places += [deep for part in places[1:] for name in inside if isinstance(deep := part.get(name), Mapping)]
    values = [place[entry] for place in reversed(places) if place.get(entry) is not None]
    return next((value for value in values if isinstance(value, int | float | str)), None)


def _listed(things: Sequence[str]) -> str:
    return " or ".join(things) if len(things) < 3 else f"{', '.join(things[:-1])} or {things[-1]}"


def _plain(value: np.ndarray) -> np.ndarray:
    """Returns the numbers of an array, flat, in float64; a complex one as its parts."""
    flat = value.ravel()
    if np.iscomplexobj(flat):
        flat = np.concatenate([flat.real, flat.imag])
    return flat.astype(np.float64)


def _within(wanted: np.ndarray, table: np.ndarray, rtol: float) -> bool:
    place = np.searchsorted(table, wanted)
    nearest = [table[np.clip(place + step, 0, len(table) - 1)] for step in (-1, 0)]
    return bool(np.logical_or.reduce([np.isclose(near, wanted, rtol=rtol, atol=1e-12) for near in nearest]).all())
