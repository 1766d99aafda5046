"""Recorded inputs and outputs of all layers on both sides, in the common order of axes."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...judge.compare import HIGHEST
from ...judge.expectation.tolerance import MAX_FACTOR, ulp
from .. import axes, words
from ..engine.process import Failed, Process, every
from ..matching import layouts
from ..matching.layer_matching import Network
from .noise import SAME, Difference, difference

NOTHING = Difference("not comparable")
WHOLE = ("", 0)  # the call of the whole model
DTYPES = ("float32", "float64")
SHAKES, SHAKEN = 8, 2.0**-22  # runs with changed weights, and their relative change: larger than rounding in float32
Judged = tuple[Difference, Sequence[int] | None]  # with the transposition of the right's output, or None
Key = tuple[str, int]  # the path of a layer and the number of its call


class Calls:
    """The recorded calls of both sides.

    runs: by dtype, the calls of each side and the reason why it has no float64. layers: the right's
    layer by the left's. by_key: calls of each side, by dtype and key. wide: whether each side has
    float64. notes: what could not be compared, and why.
    """

    def __init__(
        self, sides: Sequence[Process], networks: Sequence[Network], layers: Mapping[str, tuple[str, str]],
        runs: Mapping[str, Sequence[Any]], ranks: Sequence[str],
    ) -> None:  # fmt: skip
        self.sides, self.networks, self.layers, self.ranks = sides, networks, layers, ranks
        self.by_key = [
            {dtype: {(call["path"], call["index"]): call for call in runs[dtype][which][0]} for dtype in runs} for which in (0, 1)
        ]
        self.wide = [not runs["float64"][which][1] for which in (0, 1)]
        self.notes = [
            words.no_float64(side.side.text, runs["float64"][which][1]) for which, side in enumerate(sides) if runs["float64"][which][1]
        ]

    def pair(self, *keys: Key, dtype: str = "float32") -> list[Any]:
        """Returns the call of each side, or None."""
        return [side[dtype].get(key) for side, key in zip(self.by_key, keys, strict=True)]

    def common(self, call: Mapping[str, Any], what: str) -> list[np.ndarray]:
        """Returns the inputs or outputs of a call in the common order of axes."""
        tags = call[f"{what[:-1]}_axes"]
        return [axes.to_common(array, tag, self.ranks) for array, tag in zip(call[what], tags, strict=True)]

    def input_of(self, which: int, path: str) -> np.ndarray | None:
        """Returns the first input of a layer in float32, in the common order of axes."""
        call = self.by_key[which]["float32"].get((path, 0))
        return self.common(call, "inputs")[0] if call and call["inputs"] else None

    def setting(self, which: int, path: str, name: str) -> Any:
        return self.networks[which].layers.get(path, {}).get("hyperparameters", {}).get(name)

    def differences(self, left: Key, right: Key, what: str) -> list[Difference]:
        """Returns the differences of the inputs or outputs of two calls."""
        found = [[self.common(call, what) if call else [] for call in self.pair(left, right, dtype=dtype)] for dtype in DTYPES]
        if left == right == WHOLE and what == "outputs":
            found = [[[several[pair[which]] for pair in self.outputs] for which, several in enumerate(both)] for both in found]
        shapes = {array.shape for several in found[0] for array in several[:1]}
        alike = len(shapes) == 1 and 1 in map(len, found[0])  # a graph drops outputs that nothing reads
        if len(found[0][0]) != len(found[0][1]) and (what == "inputs" or alike or self.networks[0].kind(left[0]) == "attention"):
            found = [[first_of(several, what) for several in pair] for pair in found]
        if len(found[0][0]) != len(found[0][1]):
            return [Difference("not comparable", note=f"{len(found[0][0])} arrays on the left, {len(found[0][1])} on the right")]
        pairs = zip(DTYPES, found, strict=True)
        arrays = [self.activated(left[0], right[0], dtype, both) if what == "outputs" else both for dtype, both in pairs]
        judged = [self.difference(*four) for four in zip(*arrays[0], *arrays[1], strict=True)]
        if self.networks[0].kind(left[0]) == "experts":  # one side returns the output of each, the other the chosen ones' sum
            judged = [dataclasses.replace(NOTHING, note=one.note) if one.shapes else one for one in judged]
        return judged

    def difference(self, left: np.ndarray, right: np.ndarray, left_wide: np.ndarray, right_wide: np.ndarray) -> Difference:
        pairs = [*zip(left.shape, right.shape, strict=False)]  # one side may compute once for the whole batch
        repeats = left.ndim == right.ndim and all(1 in pair or pair[0] == pair[1] for pair in pairs)
        if left.shape != right.shape and repeats:
            (left, right), (left_wide, right_wide) = (np.broadcast_arrays(*pair) for pair in ((left, right), (left_wide, right_wide)))
        found = difference(left, right, left_wide if self.wide[0] else None, right_wide if self.wide[1] else None)
        if found.shapes and left.size == right.size:
            return dataclasses.replace(NOTHING, note=f"different layout: {found.note}")
        return found

    def activated(self, left: str, right: str, dtype: str, arrays: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
        """Applies the activation that only one side's layer contains to the other's outputs."""
        names = [self.setting(which, path, "activation") for which, path in enumerate((left, right))]
        if None in names or names[0] == names[1] or "linear" not in names:
            return arrays
        plain = names.index("linear")
        active = self.sides[1 - plain].call("activate", (left, right)[1 - plain], arrays[plain], dtype)
        return [active if which == plain and active is not None else several for which, several in enumerate(arrays)]

    def judged_outputs(self) -> list[Judged]:
        """Returns the differences of the models' outputs and the transposition of the right, or
        None.

        Transposed outputs differ. Raises ValueError if no output can be compared.
        """
        rows = self.differences(WHOLE, WHOLE, "outputs")
        for side, call in zip(self.sides, self.pair(WHOLE, WHOLE), strict=True):
            if any(tag and axes.moves_channels(tag, self.ranks) for tag in call["output_axes"]):
                self.notes.append(words.channels(side.which))
        if all(one.verdict == NOTHING.verdict and order is None for one, order in zip(rows, self._orders, strict=True)):
            raise ValueError(f"the outputs cannot be compared: {rows[0].note if rows else 'there are no arrays'}")
        return [
            (Difference("differs", HIGHEST, 0.0, HIGHEST, None, one.note) if order and one.verdict == NOTHING.verdict else one, order)
            for one, order in zip(rows, self._orders, strict=True)
        ]

    def but_for_jumps(self, found: Sequence[Judged]) -> list[Judged]:
        """Returns the differences of the outputs, of which those that rounding causes are `rounding`.

        Rounding decides near ties, such as a router's. So numbers that jump if the weights change by
        SHAKEN have a noise of their own: the largest change. A side that keeps its weights has none.
        """
        if not any(one.verdict == "differs" and one.noise and not order for one, order in found):
            return [*found]
        try:
            shaken = every(self.sides, "shaken", SHAKES, SHAKEN)
        except Failed:
            return [*found]
        arrays, spreads = [], []
        for call, runs in zip(self.pair(WHOLE, WHOLE), shaken, strict=True):
            arrays.append(self.common(call, "outputs"))
            others = [self.common({**call, "outputs": outputs}, "outputs") for outputs in runs]
            spreads.append([np.max([np.abs(other[n] - own) for other in others], axis=0) for n, own in enumerate(arrays[-1])])
        judged = [
            (_but_for_jumps(one, arrays[0][left], arrays[1][right], spreads[0][left], spreads[1][right]), order)
            if one.verdict == "differs" and one.noise and not order
            else (one, order)
            for (one, order), (left, right) in zip(found, self.outputs, strict=True)
        ]
        self.notes += [words.jumps(one.jumps) for one, _ in judged if one.jumps]
        return judged

    @functools.cached_property
    def _orders(self) -> list[Sequence[int] | None]:
        several = [self.common(call, "outputs") for call in self.pair(WHOLE, WHOLE)]
        return [layouts.transposition(several[0][left], several[1][right]) for left, right in self.outputs]

    @functools.cached_property
    def outputs(self) -> list[tuple[int, int]]:
        """Returns the pairs of outputs to compare: in order, or else by shape.

        Raises ValueError if no two shapes are permutations of each other.
        """
        several = [self.common(call, "outputs") for call in self.pair(WHOLE, WHOLE)]
        shapes = [[array.shape for array in arrays] for arrays in several]
        if len(shapes[0]) == len(shapes[1]) and all(itertools.starmap(layouts.fit, zip(*shapes, strict=True))):
            return [(index, index) for index in range(len(shapes[0]))]
        found = _alike(several, layouts.fit) or _alike(several, layouts.may_be_transposed)
        if not found:
            raise ValueError(f"no outputs have the same shape: {shapes[0]} on the left, {shapes[1]} on the right")
        for which, known in (("left", [index for index, _ in found]), ("right", [index for _, index in found])):
            own = shapes[which == "right"]
            if spare := [str(shape) for index, shape in enumerate(own) if index not in known]:
                self.notes.append(words.spare_outputs(which, spare))
        return found

    def cotangents(self, seed: int) -> list[list[np.ndarray]]:
        """Returns equal random cotangents for both sides; zeros for unpaired outputs."""
        calls = self.pair(WHOLE, WHOLE)
        several = [self.common(call, "outputs") for call in calls]
        cotangents: list[dict[int, np.ndarray]] = [{}, {}]
        rng = np.random.default_rng([seed, 1])
        for (left, right), order in zip(self.outputs, self._orders, strict=True):
            shapes = several[0][left].shape, several[1][right].shape
            array = rng.standard_normal(shapes[0]).astype(np.float32)
            cotangents[0][left] = array
            cotangents[1][right] = array.transpose(np.argsort(order)) if order else array.reshape(shapes[1])
        return [
            [
                axes.from_common(own.get(index, np.zeros_like(array)), tag, self.ranks)
                for index, (array, tag) in enumerate(zip(arrays, call["output_axes"], strict=True))
                if array.dtype.kind == "f"
            ]
            for own, arrays, call in zip(cotangents, several, calls, strict=True)
        ]


def _but_for_jumps(one: Difference, left: np.ndarray, right: np.ndarray, of_left: np.ndarray, of_right: np.ndarray) -> Difference:
    noise = np.maximum(np.maximum(of_left, of_right.reshape(left.shape)), one.noise)
    error = np.abs(left - right.reshape(left.shape))
    jumps = int((noise > SAME * one.noise).sum())
    if not jumps or (error > MAX_FACTOR * noise + ulp(float(np.abs(left).max()), "float32")).any():
        return one
    return dataclasses.replace(one, verdict="rounding", units=float((error / noise).max()), wide=None, jumps=jumps)


def _alike(several: Sequence[Sequence[np.ndarray]], like: Callable[[Sequence[int], Sequence[int]], bool]) -> list[tuple[int, int]]:
    """Returns pairs of outputs by shape, and by numbers if several have one shape."""
    free, found = dict(enumerate(several[1])), []
    for left, array in enumerate(several[0]):
        fits = [index for index, other in free.items() if like(array.shape, other.shape)]
        same = [index for index in fits if layouts.agree(array, free[index].reshape(array.shape))]
        if fits:
            found.append((left, (same or fits)[0]))
            del free[found[-1][1]]
    return found


def first_of(arrays: list[np.ndarray], what: str) -> list[np.ndarray]:
    """Returns the first array, if the others are attention weights or repeated inputs."""
    same = what == "outputs" or all(np.array_equal(array, arrays[0]) for array in arrays[1:])
    return arrays[:1] if same else arrays


def without_head(calls: Calls) -> str:
    """Cuts the head off a side, so that hidden states are compared with hidden states.

    Applies if no output shapes fit and one side has a matrix after the partner of the other's last
    layer. Returns a note; empty if no head was cut off.
    """
    pair = calls.pair(WHOLE, WHOLE)
    shapes = [[array.shape for array in calls.common(call, "outputs")] for call in pair]
    if any(layouts.fit(one, other) or layouts.may_be_transposed(one, other) for one in shapes[0] for other in shapes[1]):
        return ""
    right = {path: other for path, (other, _) in calls.layers.items()}
    for ends, partners in enumerate((right, {other: path for path, other in right.items()})):
        for own in reversed([key for key in calls.by_key[ends]["float32"] if key[0] and key[0] in partners]):
            partner = partners[own[0]], own[1]
            given, other = calls.by_key[ends]["float32"].get(own), calls.by_key[1 - ends]["float32"].get(partner)
            if not (given and other and given["outputs"] and other["outputs"] and pair[ends]["outputs"]):
                continue
            projects = _projects(calls.networks[1 - ends], other["outputs"][0], pair[1 - ends]["outputs"])
            if projects and np.array_equal(given["outputs"][0], pair[ends]["outputs"][0]):
                for several in calls.by_key[1 - ends].values():
                    ended = {what: several[partner][what][:1] for what in ("outputs", "output_axes")}
                    several[WHOLE] = {**several[WHOLE], **ended}
                sides = [side.which for side in calls.sides]
                return words.headless(sides[1 - ends], sides[ends], partner[0])
    return ""


def _projects(network: Network, hidden: np.ndarray, outputs: Sequence[np.ndarray]) -> bool:
    """Returns whether the model has a matrix from its hidden width to its output width."""
    shape = {hidden.shape[-1], outputs[0].shape[-1]} if outputs and outputs[0].ndim else set()
    every = itertools.chain.from_iterable(network.variables.values())
    return any(len(variable["shape"]) == 2 and {*variable["shape"]} == shape for variable in every)
