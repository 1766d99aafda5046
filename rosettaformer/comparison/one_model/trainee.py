"""The process that trains and times one implementation.

Run as `python -m rosettaformer.comparison.one_model.trainee NAME`; `transformers:DIR` is only
timed. It answers requests (method, *arguments) with (kind, answer); the methods are those of
`Server`.
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

# modes of a training step, without eager modes that are not meant for use
STEPS = {"numpy": ("eager",), "torch": ("eager", "compiled"), "tf": ("compiled",), "jax": ("compiled",)}
PASSES = STEPS | {"tf": ("eager", "compiled"), "transformers": ("eager", "compiled")}


def modes(of: Mapping[str, tuple[str, ...]], name: str, compiled: bool) -> tuple[str, ...]:
    """Returns the modes of an implementation.

    compiled: whether to return every mode; otherwise the one that starts fastest, which is eager
    except in JAX, where compiling single operations takes longer than compiling a whole step.
    """
    return of[name] if compiled else ("compiled" if name == "jax" else "eager",)


class Server(server.Server):
    """Times rows of a model, and trains it in an implementation of this project."""

    def __init__(self, argument: str) -> None:
        super().__init__()
        self._name, _, self._folder = argument.partition(":")
        if self._folder:
            importlib.import_module(LIBRARY)  # count the library in the memory without a model
        else:
            self._trainer = backends.trainer(self._name)
            self._port = None if self._name == "numpy" else Port(self._name)
        self._alone = self._peak = status("VmRSS")

    def alone(self) -> float:
        """Returns the MiB of the process before it loads a model."""
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
        """Builds the model and returns its forward pass; transformers uses its defaults."""
        if self._folder:
            usual = {} if case.component == "states" else dict.fromkeys(("attn_implementation", "experts_implementation"))
            return Library(self._folder, **usual).timed(case, mode == "compiled")
        if self._port is None:
            return functools.partial(components.answer, case)
        prepared: Call = self._port.adapter.prepared(dataclasses.replace(case, mode=mode))
        return prepared

    def memory(self, index: int) -> float | None:
        self._peak = max(self._peak, status("VmHWM"))  # the next line resets the peak
        return super().memory(index)

    def peak(self) -> float:
        """Returns the peak MiB of the process; NaN if unknown."""
        return max(self._peak, status("VmHWM"))

    def _made(self, mode: str, config: Mapping[str, Any], values: Mapping[str, np.ndarray], recipe: Mapping[str, Any]) -> backends.Trainer:
        given = TransformerConfig.from_dict(config), Recipe(**recipe), dict(values)
        return self._trainer(*given, seed=0, device="cpu", compiled=mode == "compiled")

    def curve(self, mode: str, batches: Sequence[tuple[Any, Any]], *given: Any) -> list[tuple[float, float]]:
        """Returns loss and gradient norm of every step. given: config, values and recipe."""
        return trained(self._made(mode, *given), Recipe(**given[2]), batches)

    def training(self, mode: str, batch: tuple[Any, Any], *given: Any) -> list[dict[str, Any]]:
        """Returns the row of a training step. given: see `curve`."""

        def start() -> Callable[[], float]:
            made = self._made(mode, *given)
            return lambda: float(made.train_step(*batch))

        return self._take([self._row(mode, start)])


def trained(trainer: Any, recipe: Recipe, batches: Sequence[tuple[Any, Any]]) -> list[tuple[float, float]]:
    """Returns loss and gradient norm of every step.

    The gradient follows from Adam's first moment, `m_t = b m_(t-1) + (1 - b) g_t`.
    """
    found, before = [], _moments(trainer.state())
    for batch in batches:
        loss = float(trainer.train_step(*batch))
        after = _moments(trainer.state())
        found.append((loss, gradient_norm(before, after, recipe.beta_1)))
        before = after
    return found


def gradient_norm(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], beta_1: float) -> float:
    """Returns the norm of the gradient, in float64, from the first moments before and after a step."""
    parts = ((after[name].astype(np.float64) - beta_1 * before[name]) / (1 - beta_1) for name in after)
    return float(np.sqrt(sum(float(np.vdot(part, part)) for part in parts)))


def _moments(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in state.items() if name.startswith("first_moment.")}  # `state` returns copies


def _read(result: Any) -> Mapping[str, np.ndarray]:
    return {"output": np.asarray(next(iter(result.values())) if isinstance(result, Mapping) else result, np.float32)}


if __name__ == "__main__":
    serve_methods(lambda: Server(sys.argv[1]), server.reply)
