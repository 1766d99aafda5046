"""config.json as version 4 of transformers writes it."""

from collections.abc import Mapping
from typing import Any

from .entries import config_of
from .family import Family
from .rotary import GLOBAL, LOCAL, NAMES

_BASES = ("rope_theta", "global_rope_theta"), ("rope_local_base_freq", "local_rope_theta")  # of all or global layers, of local layers
_SHARE, _ORIGINAL = "partial_rotary_factor", NAMES["original_length"]
_OTHERS = {"dtype": "torch_dtype"}


def older(family: Family, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Returns entries of config.json as version 4 spells them: `rope_parameters` becomes
    `rope_theta`, `rope_scaling` and `partial_rotary_factor`, or the names that the family had.
    Synonyms are added.

    Raises ValueError if version 4 cannot express them.
    """
    defaults = {name: default for joint in family.joints for name, default in joint.entries.items()}
    parameters = entries.get("rope_parameters") or {}
    found = {_OTHERS.get(name, name): value for name, value in entries.items() if name != "rope_parameters"}
    for part, bases in zip([parameters[GLOBAL], parameters[LOCAL]] if GLOBAL in parameters else [parameters], _BASES, strict=False):
        rest = dict(part)
        base, kind = rest.pop("rope_theta", None), rest.pop("rope_type", "default")
        found |= {name: base for name in bases if name in defaults and base is not None}
        found |= {name: rest.pop(name) for name in (_SHARE,) if name in rest}
        if kind != "default" and defaults.get(_ORIGINAL) is not None:
            found |= {_ORIGINAL: rest.pop(_ORIGINAL), "rope_scaling": {"type": kind, **rest}}
        elif kind != "default":
            found["rope_scaling"] = {"rope_type": kind, **rest}
    found |= {other: found[name] for other, name in family.aliases.items() if name in found}
    configs = [config_of(family, one, ())[0] for one in (entries, found)]
    if configs[0] != configs[1]:
        raise ValueError(f"version 4 of transformers has no entries for these rope_parameters of {family.name}: {parameters}")
    return found
