"""Differing settings and attributes of two layers, as text."""

from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from .. import kinds
from ..matching.variable_matching import Pair
from .recorded_calls import Calls


def differing(calls: Calls, table: Sequence[Pair], left: str, right: str) -> list[str]:
    """Returns the differing hyperparameters, attributes, weights and variables of two layers."""
    own = [network.layers.get(path, {}).get("hyperparameters", {}) for network, path in zip(calls.networks, (left, right), strict=True)]
    given = [calls.input_of(which, path) for which, path in enumerate((left, right))]
    kind = calls.networks[0].kind(left)
    numbers = [
        kinds.resolved(kind, values, list(array.shape[1:-1]) if array is not None else []) for values, array in zip(own, given, strict=True)
    ]
    said = []
    alone = [row for row in table if row["layer"] == (left if row["left"] else right) and not (row["left"] and row["right"])]
    lacking = {(row["left"] or row["right"]).rpartition(".")[2] for row in alone} | {row.get("role") for row in alone}
    for name in sorted((own[0].keys() & own[1].keys()) - lacking):
        if not _same(numbers[0][name], numbers[1][name]):
            texts = [
                _text(number) if number == value else f"{_text(value)} = {_text(number)}"
                for number, value in ((numbers[which][name], own[which][name]) for which in (0, 1))
            ]
            said.append(f"{name} {texts[0]} on the left, {texts[1]} on the right")
    said += scalars(calls, left, right, {*own[0]} | {*own[1]})
    holders = {one["name"]: path for path, several in calls.networks[1].variables.items() for one in several}
    partners = {other for other, _ in calls.layers.values()} - {right}
    for row in table:
        if row["layer"] == left and row.get("other numbers"):
            said.append(f"the values of {row['left']} differ" + (f": {row['relation']['text']}" if "relation" in row else ""))
        elif row["layer"] == left and row["left"] and holders.get(row["right"]) in partners:
            said.append(f"{row['left']} has the values of {row['right']} on the right")
    for row in alone:
        has = "left" if row["left"] else "right"
        said.append(f"{row[has].rpartition('.')[2]} only on the {has}")
    return said


def scalars(calls: Calls, left: str, right: str, said: Set[str]) -> list[str]:
    """Returns the differing attributes, without those that are listed already (said)."""
    own = [network.layers.get(path, {}).get("scalars", {}) for network, path in zip(calls.networks, (left, right), strict=True)]
    return [
        f"{name} {_text(value)} on the left, {_text(own[1][name])} on the right"
        for name, value in own[0].items()
        if name in own[1] and name not in said and not ("epsilon" in said and "eps" in name) and not _same(value, own[1][name])
    ]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-6, atol=0))
    return one == other


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
