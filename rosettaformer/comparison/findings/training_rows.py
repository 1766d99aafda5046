"""Compares the gradients of both sides, and one step of training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import axes
from ..engine.process import Failed, every
from ..explaining import Explaining
from ..kinds import PADDING
from ..matching import weight_layout
from ..matching.variable_matching import Pair
from ..words import CONVENTION
from .noise import Difference, difference
from .recorded_calls import Calls

OPTIMIZERS = ("sgd", "adamw")
CLOSE = 1e-6  # relative error up to which a convention explains a running variance
STATISTICS = ("mean", "variance")  # roles of running statistics


def gradients(
    calls: Calls, table: Sequence[Pair], orders: Mapping[str, Sequence[Sequence[str]]], explaining: Explaining
) -> list[dict[str, Any]]:
    """Returns a row for every floating-point input and parameter.

    orders: axes of each input on both sides.
    """
    found = {dtype: every(calls.sides, "gradients", dtype) for dtype in ("float32", "float64")}
    rows = []
    for name, (of_left, of_right) in orders.items():
        key = f"input {name}"
        if key in found["float32"][0] and key in found["float32"][1]:
            usual = range(found["float32"][1][key].ndim)
            order = axes.permutation(of_right, of_left) if of_left else usual
            arrays = [[mine[key], theirs[key].transpose(order)] for mine, theirs in found.values()]
            rows.append({"left": key, "right": key} | difference(*arrays[0], *arrays[1]).plain())
    for pair in table:
        if pair["left"] in found["float32"][0] and pair["right"] in found["float32"][1]:
            arrays = [[found[dtype][0][pair["left"]], _carried(found[dtype][1], pair)] for dtype in found]
            one = difference(*arrays[0], *arrays[1])
            convention = explaining(f"a convention of {pair['left']}", _but_for_padding, pair, arrays, calls, one) or {}
            rows.append({"left": pair["left"], "right": pair["right"]} | one.plain() | convention)
    return rows


def _but_for_padding(pair: Pair, arrays: Sequence[Sequence[np.ndarray]], calls: Calls, found: Difference) -> dict[str, Any]:
    """Returns the convention verdict if a table differs only in an untrained row."""
    if found.verdict != "differs" or pair["role"] != "table":
        return {}
    paths = pair["layer"], pair["right"].rpartition(".")[0]
    for which, side in enumerate(("left", "right")):
        row = calls.setting(which, paths[which], PADDING)
        if row is None or not 0 <= row < len(arrays[0][0]):
            continue
        kept = [[np.delete(array, row, axis=0) for array in several] for several in arrays]
        rest = difference(*kept[0], *kept[1])
        if rest.verdict != "differs":
            note = f"the {side} does not train row {row} of the table ({PADDING})"
            return rest.plain() | {"verdict": CONVENTION, "note": note}
    return {}


def _carried(arrays: Mapping[str, np.ndarray], pair: Pair) -> np.ndarray:
    return weight_layout.carried(arrays[pair["right"]], pair["right_axes"], pair["left_axes"], pair["sizes"])


def steps(calls: Calls, table: Sequence[Pair], explaining: Explaining) -> dict[str, Any]:
    """Returns the rows of all variables after one step by optimizer, or why there are none."""
    statistics = [pair["left"] for pair in table if pair["left"] and pair.get("role") in STATISTICS]
    values = calls.sides[0].call("values") if statistics else {}
    before = {name: values[name] for name in statistics}
    found: dict[str, Any] = {}
    for optimizer in OPTIMIZERS:
        try:
            answers = {dtype: every(calls.sides, "step", dtype, optimizer) for dtype in ("float32", "float64")}
        except Failed as error:
            if error.ended:
                raise
            found[optimizer] = {"not comparable": str(error), "rows": []}
            continue
        random = [f"{side.side.text}: {answer[1]}" for side, answer in zip(calls.sides, answers["float32"], strict=True) if answer[1]]
        if random:
            found[optimizer] = {"not comparable": "; ".join(random), "rows": []}
            continue
        found[optimizer] = {"rows": [_row(pair, answers, before, calls, explaining) for pair in table if pair["left"] and pair["right"]]}
        del answers  # free the memory of all variables
    return found


def _row(
    pair: Pair, answers: Mapping[str, Sequence[Any]], before: Mapping[str, np.ndarray], calls: Calls, explaining: Explaining
) -> dict[str, Any]:
    arrays = [[answers[dtype][0][0][pair["left"]], _carried(answers[dtype][1][0], pair)] for dtype in answers]
    found = difference(*arrays[0], *arrays[1])

    what, convention = f"a convention of {pair['left']}", dict[str, Any]()
    if found.verdict == "differs" and pair["role"] in STATISTICS:
        convention = explaining(what, _explained, pair, arrays[1], before[pair["left"]], calls) or convention
    elif found.verdict == "differs":
        convention = explaining(what, _but_for_padding, pair, arrays, calls, found) or convention
    return {"left": pair["left"], "right": pair["right"]} | found.plain() | convention


def _explained(pair: Pair, after: Sequence[np.ndarray], before: np.ndarray, calls: Calls) -> dict[str, Any]:
    """Returns a note and verdict if conventions explain differing running statistics exactly."""
    left = pair["layer"]
    right = pair["right"].rpartition(".")[0]
    kept = [calls.setting(which, path, "momentum") for which, path in enumerate((left, right))]
    given = calls.input_of(0, left)
    if None in kept or given is None or not all(0 <= share < 1 for share in kept):
        return {}
    count = given.size // given.shape[-1]
    batch = [(array.astype(np.float64) - share * before.astype(np.float64)) / (1 - share) for array, share in zip(after, kept, strict=True)]
    factors = {"": 1.0}
    if pair["role"] == "variance" and count > 1:
        text = "the running variance on the {} is unbiased, n/(n-1) times that of the other side"
        factors = {"": 1.0, text.format("left"): (count - 1) / count, text.format("right"): count / (count - 1)}
    momentum = "" if np.isclose(*kept) else f"the momentum of the statistics is {kept[0]:g} on the left, {kept[1]:g} on the right"
    for text, factor in factors.items():
        if np.allclose(batch[0] * factor, batch[1], rtol=CLOSE, atol=CLOSE * float(np.abs(batch[1]).max())):
            said = "; ".join(filter(None, [text, momentum]))
            if said:
                return {"note": said} | ({} if momentum else {"verdict": CONVENTION})
    return {}
