"""Inputs that a port may ignore: the plainest alterations, which no catalogue lists."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ..case import Case
from ..catalogue import Alteration
from ..catalogue.alteration import on_arguments, setting
from ..reference.components import FORWARD, signature_of


def ignored(probes: Sequence[Case]) -> list[Alteration]:
    """The alterations that take an optional array for absent, one for each that some probe is given."""
    component = probes[0].component if probes else ""
    if component not in FORWARD or any(probe.component != component for probe in probes):
        return []
    optional = [name for name, one in signature_of(component).parameters.items() if one.default is None]
    given = [name for name in optional if any(isinstance(probe.inputs.get(name), np.ndarray) for probe in probes)]
    return [
        setting(
            f"{component}.{name}=ignored", component, f"`{name}` is ignored", f"use `{name}`", on_arguments(**{name: None})
        )
        for name in given
    ]  # fmt: skip


def words_of(one: Alteration) -> str:
    """How a symptom says that the input of such an alteration is ignored."""
    name = one.id.removesuffix("=ignored").rpartition(".")[2]
    return f"without `{name}`: it is ignored"


def reversed_rows(case: Case) -> Case:
    """The case with the rows of its batch in reverse order; itself if it has one row, or masks of dropout."""
    rows = {name: value for name, value in case.inputs.items() if isinstance(value, np.ndarray) and _of_rows(name, value)}
    if not rows or any(name.startswith("keep") for name in case.inputs):
        return case
    inputs = dict(case.inputs) | {name: np.ascontiguousarray(value[::-1]) for name, value in rows.items()}
    return dataclasses.replace(case, inputs=inputs, twice=False)


def _of_rows(name: str, value: np.ndarray) -> bool:
    """Whether an array has a row for each of the batch: its name ends in axes that begin with b, or names none."""
    axes = name.rpartition("_")[2] if "_" in name else "b"
    return value.ndim > 1 and len(value) > 1 and axes.startswith("b")
