"""Passes inputs, in the axis order of each side, and weights to both sides."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...common.modules import arguments
from ...files.checkpoints import container
from .. import axes, words
from ..matching import weight_layout
from ..matching.layer_matching import Network
from ..matching.variable_matching import Pair
from . import declared_inputs, random_weights
from .process import Process


class Given:
    """The inputs of both sides: arrays by name with their axes, () if undeclared.

    notes: inputs that a side does not accept. orders: axes of each input on the left and on the
    right. ranks: all axes in the common order. one_order: whether both sides have the same channel
    convention. about: descriptions of the sides. Raises ValueError on missing inputs and axes that
    do not match.
    """

    def __init__(
        self, about: Sequence[dict[str, Any]], inputs: Sequence[declared_inputs.Input], file: Path | None,
        chosen: Sequence[Mapping[str, Sequence[str]]], seed: int,
    ) -> None:  # fmt: skip
        self._about, self._chosen = about, chosen
        self.arrays = self._made(inputs, file, seed)
        self.notes = [
            words.ignored(which, lacking)
            for which, one in zip(("left", "right"), about, strict=True)
            if (lacking := arguments.beside(known := [name for name, _ in one["arguments"]], arguments.of_decoder(known, self.arrays)))
        ]
        self.orders: dict[str, list[list[str]]] = {}
        self.ranks: list[str] = []
        conventions = [one["convention"] for one in about]
        for name, (array, named) in self.arrays.items():
            self.orders[name] = [self._order(which, name, named, conventions) for which in (0, 1)]
            if not named and array.ndim > 2 and array.dtype.kind == "f" and {*conventions} == {"first", "last"}:
                raise ValueError(
                    f"the left has channels {conventions[0]} and the right {conventions[1]}, so declare the axes of {name}, with c for the "
                    f"channels: --input '{name}: b h w c'"
                )
            self.ranks += [axis for axis in axes.common(named) if axis not in self.ranks]
        self.one_order = len({*filter(None, conventions)}) < 2 and all(left == right for left, right in self.orders.values())

    def _made(self, inputs: Sequence[declared_inputs.Input], file: Path | None, seed: int) -> dict[str, tuple[np.ndarray, tuple[str, ...]]]:
        """Returns the inputs from the file, as declared, or the model's defaults."""
        given = declared_inputs.read(file) if file else {}
        if given or inputs:
            return declared_inputs.make(inputs, given, seed)
        files_first = sorted(self._about, key=lambda one: one["framework"] != "onnx")  # an ONNX file may fix the sizes of its inputs
        suggested = next((one["inputs"] for one in files_first if one["inputs"]), None)
        if not suggested:
            named = ", ".join(name for name, _ in self._about[0]["arguments"]) or "x"
            raise ValueError(
                f"inputs are required; the arguments of the left are {named}. Use --input FILE.npz, or declare each: "
                f"--input '{named.split(',')[0]}: b=2 h=16 w=16 c=3 float32'"
            )
        if isinstance(suggested, Mapping):
            return declared_inputs.make([], suggested, seed)
        return declared_inputs.make([declared_inputs.declaration(text) for text in suggested], {}, seed)

    def _order(self, which: int, name: str, named: Sequence[str], conventions: Sequence[str]) -> list[str]:
        """Returns the axes of an input on one side: as chosen, or by its channel convention."""
        if given := self._chosen[which].get(name):
            try:
                axes.permutation(named, given)
            except ValueError as error:
                raise ValueError(f"--axes {('left', 'right')[which]} {name}: {error}") from None
            return list(given)
        return axes.ordered(named, conventions[which] or next(filter(None, conventions), ""))

    def prepared(self, sides: Sequence[Process], wide: bool, random: bool) -> list[Any]:
        """Passes the inputs to both sides and returns their descriptions.

        wide, random: see `Server.prepare`.
        """
        described = []
        for which, side in enumerate(sides):
            own = {
                name: np.asarray(array.transpose(axes.permutation(named, self.orders[name][which])) if named else array, order="C")
                for name, (array, named) in self.arrays.items()
            }
            described.append(side.call("prepare", own, {name: orders[which] for name, orders in self.orders.items()}, wide, random))
            self._about[which] |= {name: described[-1][name] for name in ("convention", "notes")}
        attend = [any(layer["kind"] == "attention" for layer in one["layers"]) for one in described]
        for which, side in enumerate(sides):
            if attend[which] and not attend[1 - which]:  # the other side may implement it in separate layers
                described[which] = side.call("describe", False)
        return described


def carry(sides: Sequence[Process], networks: Sequence[Network], table: Sequence[Pair], choice: str, seed: int) -> list[str]:
    """Loads the weights into both sides: random, left, right, a file, or own (unchanged).

    Returns notes.

    Random variables that only one side has are zero if the function can do without them. Raises
    ValueError on NaN or infinity, and on tied names with different values.
    """
    if choice == "own":
        return []
    notes: list[str] = []
    if choice == "random":
        _load(sides[0], random_weights.made(sides[0].call("values"), networks[0], seed), {})
        for which, side in enumerate(sides):
            if zero := random_weights.needless(networks[which], table, which):
                held = side.call("values")
                _load(side, {name: np.zeros_like(held[name]) for name in zero}, {})
            for why in dict.fromkeys(zero.values()):
                names = [name for name, reason in zero.items() if reason == why]
                notes.append(words.zero(names, sides[1 - which].which, why))
        choice = "left"
    source = 1 if choice == "right" else 0
    values = sides[source].call("values") if choice in ("left", "right") else _of_file(Path(choice), networks[0])
    wrong = [name for name, array in values.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]
    if wrong:
        raise ValueError(f"weights must be finite; {', '.join(wrong[:5])} of {choice} contain NaN or infinity")
    ends = ("left", "right") if source == 0 else ("right", "left")
    carried = {}
    for row in table:
        if row["left"] and row["right"]:
            array = values[row[ends[0]]]
            try:
                carried[row[ends[1]]] = weight_layout.carried(array, row[f"{ends[0]}_axes"], row[f"{ends[1]}_axes"], row["sizes"])
            except ValueError as error:
                raise ValueError(f"{row['left']} and {row['right']}: {error}") from None
    _load(sides[1 - source], carried, {row[ends[1]]: row[ends[0]] for row in table})
    if choice not in ("left", "right"):
        _load(sides[0], {row["left"]: values[row["left"]] for row in table if row["left"] in values}, {})
    return notes


def _load(side: Process, values: Mapping[str, np.ndarray], origin: Mapping[str, str]) -> None:
    """Loads the values and verifies that the side holds them. origin: source name of each value."""
    side.call("load", values)
    held = side.call("values")
    lost = [name for name, array in values.items() if not np.array_equal(held[name], array.astype(held[name].dtype), equal_nan=True)]
    if not lost:
        return
    name = lost[0]
    shared = [one for one, array in values.items() if one != name and np.array_equal(held[name], array.astype(held[name].dtype))]
    if not shared:
        raise ValueError(f"{side.side.text} (the {side.which}) does not keep the values loaded into {name}")
    own = [origin.get(one, one) for one in (name, shared[0])]
    raise ValueError(
        f"{name} and {shared[0]} are tied on the {side.which}, but {own[0]} and {own[1]} have different values on the other side; "
        "tie or untie both"
    )


def _of_file(path: Path, left: Network) -> dict[str, np.ndarray]:
    """Returns the weights of a file with the left's names."""
    tensors = container.read(path).tensors
    wanted = {one["name"]: tuple(one["shape"]) for several in left.variables.values() for one in several if one["required"]}
    problems = [f"{path} does not contain {name}" for name in wanted if name not in tensors]
    problems += [
        f"{name} must have shape {shape}; {path} has {tensors[name].shape}"
        for name, shape in wanted.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    if problems:
        raise ValueError("\n  ".join(problems))
    return {name: np.asarray(tensors[name], np.float32) for name in wanted}
