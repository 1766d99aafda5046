"""Runs a backend's Trainer in a separate process, step by step; even a crash is an output.

`python -m rosettaformer.use.training.remote BACKEND` reads (method, *arguments) and writes pairs
(kind, output), like a port's process. `build` creates the Trainer from a config, a recipe,
parameters, a seed, a device and whether to compile. `step` takes source, target and keep masks, and
returns the loss and the parameters.
"""

import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.recipe import Recipe

from ...common.extras import MissingBackend
from ...common.processes import Answer, Child, message, serve_methods, words
from . import backends


class Remote(Child):
    """The process of a backend: a name in `backends.BACKENDS`, or a file with a class `Trainer`.

    Outputs: ("ready", None); ("missing", reason or install command); ("step", (loss, parameters));
    ("error", the backend's exception); ("crash" or "hang", how the process ended).
    """

    def __init__(self, backend: str, threads: int) -> None:
        super().__init__(__name__, backend, threads, "the backend")

    def answer(self, limit: float) -> Answer:
        answer = super().answer(limit)
        return answer if _is_answer(*answer) else self.refuse(f"the kind {answer[0]}, with {type(answer[1]).__name__}")


def _is_answer(kind: str, value: Any) -> bool:
    if kind == "ready":
        return value is None
    if kind == "step":
        numbers = type(value) is tuple and len(value) == 2 and type(value[0]) is float and type(value[1]) is dict
        return numbers and all(type(name) is str and type(array) is np.ndarray for name, array in value[1].items())
    return kind in ("missing", "error", "crash", "hang") and type(value) is str


def _load(backend: str) -> Callable[..., backends.Trainer]:
    if not backend.endswith(".py"):
        return backends.trainer(backend)
    sys.path.insert(0, str(Path(backend).resolve().parent))
    defined = runpy.run_path(backend)
    if "Trainer" not in defined:
        raise ValueError(f"{backend} must define a class Trainer")
    return defined["Trainer"]


class _Server:
    """The other end: holds the Trainer."""

    def __init__(self, backend: str) -> None:
        self._make = _load(backend)

    def build(self, config: Mapping[str, Any], recipe: Mapping[str, Any], *others: Any) -> None:
        self._trainer = self._make(TransformerConfig.from_dict(config), Recipe(**recipe), *others)

    def step(self, *arguments: Any) -> Answer:
        loss = float(self._trainer.train_step(*arguments))
        return "step", (loss, backends.parameters_of(self._trainer.state()))


def _reply(action: Callable[[], Answer | None]) -> Answer:
    try:
        return action() or ("ready", None)
    except MissingBackend as error:
        return "missing", message(error)
    except BaseException as error:  # includes SystemExit and exceptions derived by foreign code
        return "error", words(error)


if __name__ == "__main__":
    serve_methods(lambda: _Server(sys.argv[1]), _reply)
