"""The process of one implementation that trains and is timed: `python -m rosettaformer.comparison.one_model.trainee NAME`, or
`transformers:DIR`, which is timed alone.

It answers (method, *arguments) with (kind, answer). The methods are those of `Server`.
"""

import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.recipe import Recipe

from ...common.processes import serve_methods
from ...judge.case import Case
from ...judge.expectation import components
from ...judge.ports.port import Port
from ...use.training import backends
from ..timing import server
from ..timing.memory import status
from ..timing.rows import Call, Row
from .implementations import LIBRARY, Library

# how a training step runs in use: a framework whose eager step is not for use has none
STEPS = {"numpy": ("eager",), "torch": ("eager", "compiled"), "tf": ("compiled",), "jax": ("compiled",)}
PASSES = STEPS | {"tf": ("eager", "compiled"), "transformers": ("eager", "compiled")}


def modes(of: Mapping[str, tuple[str, ...]], name: str, compiled: bool) -> tuple[str, ...]:
    """Returns the modes in which an implementation runs. compiled: whether every mode is wanted; otherwise the one that starts soonest,
    which is eager, but JAX's: operation by operation it compiles far longer than a whole step.
    """
    return of[name] if compiled else ("compiled" if name == "jax" else "eager",)


class Server(server.Server):
    """Answers for the rows of the model that it is given; one of our four implementations also trains."""

    def __init__(self, argument: str) -> None:
        super().__init__()
        self._name, _, self._folder = argument.partition(":")
        if self._folder:
            importlib.import_module(LIBRARY)  # what is held without a model has it
        else:
            self._trainer = backends.trainer(self._name)
            self._port = None if self._name == "numpy" else Port(self._name)
        self._alone = self._peak = status("VmRSS")

    def alone(self) -> float:
        """Returns MiB of the process before it was given a model."""
        return self._alone

    def passes(
        self, component: str, config: Mapping[str, Any], values: Mapping[str, np.ndarray], inputs: Mapping[str, Any], compiled: bool
    ) -> list[dict[str, Any]]:
        """Returns the rows of the forward pass of a component."""
        case = Case("report", component, TransformerConfig.from_dict(config), inputs, values, dtype="float32")
        return self._take([self._row(mode, functools.partial(self._pass, case, mode)) for mode in modes(PASSES, self._name, compiled)])

    def _row(self, mode: str, start: Callable[[], Call]) -> Row:
        return Row(self._name, mode, compiles=mode == "compiled", start=start, read=_read)

    def _pass(self, case: Case, mode: str) -> Call:
        """Builds the model, that of transformers with the attention that it takes by itself, and returns its forward pass."""
        if self._folder:
            attention = {} if case.component == "states" else {"attn_implementation": None}
            return Library(self._folder, **attention).timed(case, mode == "compiled")
        if self._port is None:
            return functools.partial(components.answer, case)
        prepared: Call = self._port.adapter.prepared(dataclasses.replace(case, mode=mode))
        return prepared

    def memory(self, index: int) -> float | None:
        self._peak = max(self._peak, status("VmHWM"))  # the peak is reset there
        return super().memory(index)

    def peak(self) -> float:
        """Returns MiB of the process at its peak; NaN if the system does not say."""
        return max(self._peak, status("VmHWM"))

    def _made(self, mode: str, config: Mapping[str, Any], values: Mapping[str, np.ndarray], recipe: Mapping[str, Any]) -> backends.Trainer:
        given = TransformerConfig.from_dict(config), Recipe(**recipe), dict(values)
        return self._trainer(*given, seed=0, device="cpu", compiled=mode == "compiled")

    def curve(self, mode: str, batches: Sequence[tuple[Any, Any]], *given: Any) -> list[tuple[float, float]]:
        """Returns the loss before every step on these batches, and the norm of its gradient. given: config, values and recipe."""
        return trained(self._made(mode, *given), Recipe(**given[2]), batches)

    def training(self, mode: str, batch: tuple[Any, Any], *given: Any) -> list[dict[str, Any]]:
        """Returns the row of the training step in that mode. given: as of `curve`."""

        def start() -> Callable[[], float]:
            made = self._made(mode, *given)
            return lambda: float(made.train_step(*batch))

        return self._take([self._row(mode, start)])


def trained(trainer: Any, recipe: Recipe, batches: Sequence[tuple[Any, Any]]) -> list[tuple[float, float]]:
    """Returns loss and gradient norm of every step. `m_t = b m_(t-1) + (1 - b) g_t` is Adam's first moment, from which the gradient
    follows.
    """
    found, before = [], _moments(trainer.state())
    for batch in batches:
        loss = float(trainer.train_step(*batch))
        after = _moments(trainer.state())
        found.append((loss, gradient_norm(before, after, recipe.beta_1)))
        before = after
    return found


def gradient_norm(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], beta_1: float) -> float:
    """Returns the norm of the gradient that changed the first moments from before to after, in float64."""
    parts = ((after[name].astype(np.float64) - beta_1 * before[name]) / (1 - beta_1) for name in after)
    return float(np.sqrt(sum(float(np.vdot(part, part)) for part in parts)))


def _moments(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in state.items() if name.startswith("first_moment.")}  # copies, as `state` gives them


def _read(result: Any) -> Mapping[str, np.ndarray]:
    return {"output": np.asarray(next(iter(result.values())) if isinstance(result, Mapping) else result, np.float32)}


if __name__ == "__main__":
    serve_methods(lambda: Server(sys.argv[1]), server.reply)
