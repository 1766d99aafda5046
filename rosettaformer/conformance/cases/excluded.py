"""Why a case cannot be run on a port that fixes fields of the config."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from ..case import Case
from ..reference.components import ASKED, answer, takes_config

NAMED = 3  # config fields that a reason names if there are many


def excluded(case: Case, fixed: Mapping[str, Any], whose: str = "") -> Case:
    """Returns the case, with the reason if the fixed fields exclude it. whose: introduces the case's own values, all of them."""
    if not reads_config(case):
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
        reason = f"all heads of the port share {split[0]}, each for its slice of the width, which the case cannot divide among them"
    return dataclasses.replace(case, excluded=reason) if reason else case


def reads_config(case: Case) -> bool:
    """Whether anything of the case comes from its config, so that what a port fixes can exclude it.

    Inputs with an axis of heads (h, g) come from it.
    """
    suffixes = {name.rpartition("_")[2]: value for name, value in case.inputs.items() if "_" in name}
    heads = any({*axes} & {"h", "g"} and np.ndim(value) == len(axes) for axes, value in suffixes.items())
    return bool(heads or case.parameters or ASKED[case.component][1] or takes_config(case.component))


def _refused(case: Case) -> str:
    """Returns why the reference refuses a case with what a port fixes: the config has no such stack or head. Empty if it does not."""
    try:
        if takes_config(case.component):
            answer(case)
    except ValueError as error:
        return f"with what the port fixes {error}"
    return ""
