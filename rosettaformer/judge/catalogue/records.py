"""Reads the catalogue's TOML files: texts and properties of each family of known bugs, in tables
`[component.ID]`.

The Python file of the same name holds the alterations of the reference; its `ALTERED` has the same
ids.
"""

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from .alteration import CONFIGURED, FRAMEWORKS, LOADED

REQUIRED = ("title", "component", "what", "shows")
OPTIONAL = ("evidence", "elsewhere", "dtypes", "rounding", "random", "undetermined", "family", "unobservable")
# one fix for all, or one per framework with `others` for the rest; `fix_of`: the id in this family to copy it from
FIXES = ("fix", "fix_of")
ELSEWHERE = {"CONFIGURED": CONFIGURED, "LOADED": LOADED}

Family = Mapping[str, Mapping[str, Any]]


@functools.cache
def families() -> Mapping[str, Family]:
    """Returns the tables by family name and id. Raises ValueError if an id has two tables."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    owner: dict[str, str] = {}
    for file in sorted(resources.files(__package__).iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".toml"):
            continue
        name = file.name.removesuffix(".toml")
        family = found[name] = {}
        for component, tables in tomllib.loads(file.read_text(encoding="utf-8")).items():
            for id_, own in tables.items():
                if not isinstance(own, dict):
                    raise ValueError(f"{name}.toml: a table must be [component.ID]; got [{component}]")
                if id_ in owner:
                    raise ValueError(f"{name}.toml: {id_} is already in {owner[id_]}.toml")
                owner[id_], family[id_] = name, {"component": component, **own}
    return found


def properties(name: str, family: Family, id_: str) -> dict[str, Any]:
    """Returns a known bug's fields. Raises ValueError if one is unknown or missing."""
    where, own = f"{name}.toml: {id_}", dict(family[id_])
    if unknown := own.keys() - {*REQUIRED, *OPTIONAL, *FIXES}:
        raise ValueError(f"{where} has unknown keys: {', '.join(sorted(unknown))}")
    if missing := [key for key in REQUIRED if key not in own]:
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    fix = own.pop("fix", None) or family.get(own.pop("fix_of", ""), {}).get("fix")
    given = {"others": fix} if isinstance(fix, str) else dict(fix or {})
    fixes = {framework: given.get(framework, given.get("others")) for framework in FRAMEWORKS}
    if not all(fixes.values()) or given.keys() - {*FRAMEWORKS, "others"}:
        raise ValueError(f"{where} must have a fix for {', '.join(FRAMEWORKS)}")
    own |= {"fix": fixes, "elsewhere": ELSEWHERE.get(own.get("elsewhere", ""), own.get("elsewhere", ""))}
    return own | ({"dtypes": tuple(own["dtypes"])} if "dtypes" in own else {})
