"""What the port of a whole model declares that it does not give: the cases that need it are "not covered", never passed."""

import dataclasses
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from .case import DTYPES, LAST, Case
from .cases.artefact import fixed_cases
from .reference.components import VJP

# what is declared -> its values, the default first
LIMITS: Mapping[str, tuple[Any, Any]] = {"positions": ("all", LAST), "rows": (0, 1), "masks": (True, False)}
DECLARED = (*LIMITS, "dtypes")
ALIKE = 0.8  # a share of equal letters


def limits_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is declared beyond the defaults. Raises ValueError on another value than the two that there are, and on a name that is
    nearly that of a declaration, with a value that it may have.
    """
    for name, value in said.items():
        if name not in DECLARED and (meant := get_close_matches(name, DECLARED, 1, ALIKE)) and _fits(meant[0], value):
            raise ValueError(f"a port declares {', '.join(DECLARED)}; got {name} (nearest: {meant[0]})")
    found = {name: said[name] for name in LIMITS if name in said}
    for name, value in found.items():
        if not any(value is one or (type(value) is type(one) and value == one) for one in LIMITS[name]):
            raise ValueError(f"{name} must be {' or '.join(map(repr, LIMITS[name]))}; got {value!r}")
    return {name: value for name, value in found.items() if value != LIMITS[name][0]}


def _fits(name: str, value: Any) -> bool:
    """Whether what is declared may have the value, and a variable of another meaning hardly would."""
    if name == "dtypes":
        return isinstance(value, tuple | list) and bool(value) and all(isinstance(dtype, str) and dtype in DTYPES for dtype in value)
    return type(value) in (str, bool) and value in LIMITS[name]


def for_port(cases: Sequence[Case], about: Mapping[str, Any]) -> list[Case]:
    """Returns the cases as a port that describes itself so is asked them; those that it declares not to answer are excluded.

    Raises ValueError if the port is that of a whole model and no case has a folder.
    """
    if about.get("artefact"):
        return fixed_cases(cases, about.get("fixed", {}))
    if about.get("whole") and not any(case.folder for case in cases):
        raise ValueError("a port with load(folder) is judged on a folder of Hugging Face: --like FAMILY, or --like DIR")
    return [_limited(case, about.get("limits", {})) if case.folder else case for case in cases]


def _limited(case: Case, limits: Mapping[str, Any]) -> Case:
    token_bt, real_bt = next(case.inputs[side] for side in ("target", "source") if case.inputs.get(side) is not None), case.real_bt
    padded = real_bt is not None and not real_bt.all()
    last = limits.get("positions") == LAST and case.component != "classify"
    if "rows" in limits and len(token_bt) > 1:
        return dataclasses.replace(case, excluded="the port declares rows = 1")
    if "masks" in limits and padded:
        return dataclasses.replace(case, excluded="the port declares masks = False")
    if last and (case.component == "states" or case.component.endswith(VJP)):
        return dataclasses.replace(case, excluded='the port declares positions = "last"')
    if last and real_bt is not None and not real_bt[:, -1].all():
        return dataclasses.replace(case, excluded='the port declares positions = "last", and the last one is padding')
    return dataclasses.replace(case, compared=LAST) if last and case.component != "decode_in_steps" else case
