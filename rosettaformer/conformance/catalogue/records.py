"""The TOML files of the catalogue: the texts and properties of each family of known bugs, `[ID]` for each.

The Python file of the same name has the alterations of the reference; its `ALTERED` has the same ids.
"""

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from .alteration import CONFIGURED, FRAMEWORKS, LOADED

REQUIRED = ("title", "component", "what", "shows", "evidence")
OPTIONAL = ("elsewhere", "dtypes", "rounding", "random", "undetermined", "family", "unobservable")
FIXES = ("fix", "fix_of")  # by framework, or one for all; or the id of the same family whose fix it has
ELSEWHERE = {"CONFIGURED": CONFIGURED, "LOADED": LOADED}

Family = Mapping[str, Mapping[str, Any]]


@functools.cache
def families() -> Mapping[str, Family]:
    """The tables by the family's name and the defect's id. Raises ValueError if two families hold one id."""
    files = sorted(resources.files(__package__).iterdir(), key=lambda file: file.name)
    found = {
        file.name.removesuffix(".toml"): tomllib.loads(file.read_text(encoding="utf-8")) for file in files if file.name.endswith(".toml")
    }
    owner: dict[str, str] = {}
    for name, family in found.items():
        for id_ in family:
            if owner.setdefault(id_, name) != name:
                raise ValueError(f"{name}.toml: {id_} is in {owner[id_]}.toml, too")
    return found


def properties(name: str, family: Family, id_: str) -> dict[str, Any]:
    """The fields of a defect that its table has. Raises ValueError if one is unknown or missing."""
    where, own = f"{name}.toml: {id_}", dict(family[id_])
    if unknown := own.keys() - {*REQUIRED, *OPTIONAL, *FIXES}:
        raise ValueError(f"{where} has unknown keys: {', '.join(sorted(unknown))}")
    if missing := [key for key in REQUIRED if key not in own]:
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    fix = own.pop("fix", None) or family.get(own.pop("fix_of", ""), {}).get("fix")
    fixes = dict.fromkeys(FRAMEWORKS, fix) if isinstance(fix, str) else fix
    if not fixes or tuple(fixes) != FRAMEWORKS:
        raise ValueError(f"{where} must have a fix for {', '.join(FRAMEWORKS)}")
    own |= {"fix": fixes, "elsewhere": ELSEWHERE.get(own.get("elsewhere", ""), own.get("elsewhere", ""))}
    return own | ({"dtypes": tuple(own["dtypes"])} if "dtypes" in own else {})
