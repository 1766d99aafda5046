"""Known bugs of sharded ports, each a change to the operations of a mesh's devices."""

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources

from . import over_data, over_model
from .fault import Fault, at

__all__ = ["FRAMEWORKS", "Fault", "all_faults", "at"]

FRAMEWORKS = ("torch", "jax")
REQUIRED = {"title", "what", "shows", "fix", "evidence"}


@functools.cache
def all_faults() -> Mapping[str, Fault]:
    """Returns the known bugs by id.

    Raises ValueError if faults.toml and the Python files have different ids, or a table has the
    wrong keys.
    """
    words = tomllib.loads((resources.files(__package__) / "faults.toml").read_text(encoding="utf-8"))
    altered = {**over_model.ALTERED, **over_data.ALTERED}
    variants = {**over_model.VARIANTS, **over_data.VARIANTS}
    if odd := words.keys() ^ altered.keys() | variants.keys() - altered.keys():
        raise ValueError(f"faults.toml and the Python files must have the same ids; only in one: {', '.join(sorted(odd))}")
    for id_, table in words.items():
        if table.keys() != REQUIRED or tuple(table["fix"]) != FRAMEWORKS:
            raise ValueError(f"faults.toml: {id_} must have {', '.join(sorted(REQUIRED))}, and a fix for {', '.join(FRAMEWORKS)}")
    axes = dict.fromkeys(altered, "model") | dict.fromkeys(over_data.ALTERED, "data") | dict.fromkeys(over_data.ON_BOTH, "")
    return {
        id_: Fault(id=id_, axis=axes[id_], replaces=altered[id_], variants=variants.get(id_, {}), **table) for id_, table in words.items()
    }
