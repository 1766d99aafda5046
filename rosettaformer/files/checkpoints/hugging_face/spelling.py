"""config.json as version 4 of transformers writes it."""

from collections.abc import Mapping
from typing import Any

from .entries import config_of
from .family import Family
from .rotary import GLOBAL, LOCAL

_BASES = ("rope_theta", "global_rope_theta"), ("rope_local_base_freq", "local_rope_theta")  # of all or global layers, of local layers
_OTHERS = {"dtype": "torch_dtype"}


def older(family: Family, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Returns entries of config.json as version 4 spells them: `rope_parameters` becomes
    `rope_theta`, `rope_scaling` and `partial_rotary_factor`, or the names that the family had.

    Raises ValueError if version 4 cannot express them.
    """
    found = {_OTHERS.get(name, name): value for name, value in entries.items() if name != "rope_parameters"}
    parameters = entries.get("rope_parameters") or {}
    nested = GLOBAL in parameters
    parts = [parameters[GLOBAL], parameters[LOCAL]] if nested else [parameters]
    known = {name for joint in family.joints for name in joint.entries}
    synonyms = {known: name for name, known in family.aliases.items()}
    for part, names in zip(parts, _BASES, strict=False):
        rest = {name: value for name, value in part.items() if name not in ("rope_theta", "partial_rotary_factor")}
        flat = {next((name for name in names if name in known), ""): part.get("rope_theta")}
        flat |= {name: part[name] for name in ("partial_rotary_factor",) if name in part}
        found |= {synonyms.get(name, name): value for name, value in flat.items() if name and value is not None}
        if rest.get("rope_type", "default") != "default":
            found["rope_scaling"] = rest
    configs = [config_of(family, one, ())[0] for one in (entries, found)]
    if configs[0] != configs[1]:
        raise ValueError(f"version 4 of transformers has no entries for these rope_parameters of {family.name}: {parameters}")
    return found
