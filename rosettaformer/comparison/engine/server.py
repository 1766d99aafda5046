"""The process of one side, controlled by `process.Process`.

Run as `python -m rosettaformer.comparison.engine.server SIDE`, with `Side.plain()` as JSON. A
request is the name of a method of `Server` and its arguments.
"""

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...common.extras import MissingBackend
from ...common.processes import Answer, message, serve_methods, words
from ...judge.ports.port import Port
from ..explaining import Explaining
from ..matching import fusing
from ..models import behaviour, layer_calls
from ..models.base import DTYPES, Model, Variable, narrow, rounded
from ..timing import server
from ..timing.rows import Row
from . import random_weights
from .opening import opened
from .sides import Side


class Server(server.Server):
    """Runs and times one model. Inputs and cotangents are set once, in the side's own axis order."""

    model: Model

    def __init__(self, side: Mapping[str, Any]) -> None:
        super().__init__()
        self._side = Side(**side)
        self._port = Port(self._side.path) if self._side.kind == "component" else None
        self._inputs: dict[str, np.ndarray] = {}
        self._cotangents: list[np.ndarray] = []
        self._narrow = ""  # the reason why there is no float64
        self._first: Sequence[np.ndarray] | None = None  # the outputs of the run in `describe`
        self._parts: fusing.Parts = {}

    def fixed(self) -> dict[str, Any]:
        """Returns the config fields that the side's port fixes."""
        return dict(self._port.config) if self._port else {}

    def open(self, fixed: Mapping[str, Any], canonical: bool) -> dict[str, Any]:
        """Builds the model and returns its description.

        fixed: config fields that the other side's port fixes. canonical: whether both sides have
        canonical variable names, as built-in models and ports of components do.
        """
        self.model = opened(self._side, self._port, fixed, canonical)
        found = self.model.about() | {"framework": self.model.framework, "convention": self.model.convention}
        if self.model.known is not None:
            found["arguments"] = [*self.model.known.items()]
        return found | {"inputs": self.model.defaults}

    def prepare(self, inputs: Mapping[str, np.ndarray], axes: Mapping[str, Sequence[str]], wide: bool, random: bool) -> dict[str, Any]:
        """Sets the inputs, rounded to float32, and returns the layers and variables of the model.

        wide: whether to run in float64, too. random: whether the model's own weights may be
        overwritten.
        """
        self._inputs = {name: rounded(array, "float32") for name, array in inputs.items()}
        canonical = self.model.canonical
        if hasattr(self.model, "axes") and not canonical:
            self.model.axes = axes
        self.model.build(self._inputs)
        self._narrow = "" if wide else "--dtype float32 excludes it"
        if wide:
            try:
                self.model.widen(self._inputs)
            except Exception as error:
                self._narrow = message(error)
        if random:
            self.model.load(random_weights.visible(self.model.variables(), self.model.values()))
        return self.describe()

    def describe(self, whole_attention: bool = True) -> dict[str, Any]:
        """Returns layers and variables. whole_attention: whether attention counts as one layer."""
        self.model.whole_attention = whole_attention
        canonical = self.model.canonical
        layers, variables = self.model.layers(), self.model.variables()
        calls = self.model.run(self._inputs, DTYPES[0])
        explaining, activate = Explaining(), functools.partial(self.model.activate, dtype=DTYPES[0])
        behaviour.learn(layers, variables, calls, self.model.values(), activate, explaining)
        self._first = [call.outputs for call in calls if not call.path][-1]
        self._once(variables, {call.path for call in calls})
        if not whole_attention:
            layers += layer_calls.opened(layers, variables)
        variables = canonical(variables) if canonical else variables
        about = {"layers": [dataclasses.asdict(layer) for layer in layers], "variables": [dataclasses.asdict(one) for one in variables]}
        return about | {"convention": self.model.convention, "notes": list(self.model.notes), "left_out": explaining.left_out}

    def _once(self, variables: Sequence[Variable], called: set[str]) -> None:
        """Makes only one name of each tied variable required, preferably that of a called layer."""
        named = {one.name: one for one in variables}
        for names in self.model.tied():
            several = [named[name] for name in names if name in named]
            several.sort(key=lambda one: one.layer not in called)
            for one in several[1:]:
                one.required = False

    def split(self, parts: fusing.Parts) -> None:
        """Replaces variables by their parts in all later requests."""
        self._parts = parts

    def values(self) -> dict[str, np.ndarray]:
        return dict(fusing.views(self.model.values(), self._parts))

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        own = self.model.values() if self._parts else {}
        parts = {part for several in self._parts.values() for part, *_ in several}
        whole = {name: array for name, array in values.items() if name not in parts}
        for name in self._parts:
            held = {name: np.array(own[name])}
            for part, view in fusing.views(held, self._parts):
                view[...] = values.get(part, view)
            whole[name] = held[name]
        self.model.load(whole)

    def run(self, dtype: str) -> tuple[list[dict[str, Any]], str]:
        """Returns the calls of the layers, and the reason if float64 was replaced by float32.

        If the model cannot run in float64, later requests in float64 also run in float32. Raises
        ValueError if the outputs differ from those in `describe`.
        """
        if dtype == DTYPES[1] and not self._narrow:
            try:
                return self._calls(dtype)
            except Exception as error:
                self._narrow = message(error)
        calls, _ = self._calls(DTYPES[0])
        outputs = [call["outputs"] for call in calls if not call["path"]][-1]
        first, self._first = self._first, None  # the run in `describe`
        if first is not None and not behaviour.same(first, outputs):
            raise ValueError("two calls with the same inputs differ; disable dropout and other random or stateful parts")
        return calls, self._narrow if dtype == DTYPES[1] else ""

    def shaken(self, runs: int, size: float) -> list[list[np.ndarray]]:
        """Returns the outputs of several runs in float32, each with other weights, which differ by this relative size at most."""
        held, found = self.model.values(), []
        for seed in range(runs):
            rng = np.random.default_rng([seed, 3])
            self.model.load(
                {name: (array * (1 + size * rng.uniform(-1, 1, array.shape))).astype(np.float32) for name, array in held.items()}
            )
            found.append(next(call.outputs for call in reversed(self.model.run(self._inputs, DTYPES[0])) if not call.path))
        self.model.load(held)
        return found

    def _dtype(self, dtype: str) -> str:
        """Returns the dtype that the model runs in when this one is requested."""
        return DTYPES[0] if self._narrow else dtype

    def _calls(self, dtype: str) -> tuple[list[dict[str, Any]], str]:
        calls = self.model.run(self._inputs, dtype)
        problem = narrow(calls) if dtype == DTYPES[1] else ""
        return [{field.name: getattr(call, field.name) for field in dataclasses.fields(call)} for call in calls], problem

    def force(self, wanted: Sequence[tuple[str, int, list[np.ndarray]]], dtype: str) -> list[Any]:
        return self.model.force(wanted, self._inputs, self._dtype(dtype))

    def activate(self, path: str, arrays: Sequence[np.ndarray], dtype: str) -> list[np.ndarray] | None:
        """Applies the activation of a layer to arrays; None if it cannot be called separately."""
        return self.model.activate(path, list(arrays), self._dtype(dtype))

    def cotangents(self, arrays: Sequence[np.ndarray]) -> None:
        self._cotangents = list(arrays)

    def gradients(self, dtype: str) -> dict[str, np.ndarray]:
        return dict(fusing.views(self.model.gradients(self._inputs, self._cotangents, self._dtype(dtype)), self._parts))

    def step(self, dtype: str, optimizer: str) -> tuple[dict[str, np.ndarray], str]:
        after, random = self.model.step(self._inputs, self._cotangents, self._dtype(dtype), optimizer)
        return dict(fusing.views(after, self._parts)), random

    def rows(self, what: str, modes: Sequence[str]) -> list[dict[str, Any]]:
        """Returns timing rows of `forward` or `step`, one per mode."""

        def row(mode: str) -> Row:
            start = functools.partial(self.model.timed, self._inputs, self._cotangents, what, mode == "compiled")
            return Row(self.model.framework, mode, start=start, read=lambda result: {})

        return self._take([*map(row, modes)])


def reply(action: Callable[[], Any]) -> Answer:
    try:
        return "answer", action()
    except MissingBackend as error:
        return "missing", message(error)
    except (ValueError, NotImplementedError) as error:
        return "refused", message(error) or words(error)
    except (Exception, SystemExit) as error:
        return "error", words(error)


if __name__ == "__main__":
    serve_methods(lambda: Server(json.loads(sys.argv[1])), reply)
