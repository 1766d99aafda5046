"""A backend's Trainer in a process of its own: it is asked step by step, and its end is an answer.

`python -m rosettaformer.training.remote BACKEND` takes tuples (method, *arguments) on its standard input and gives pairs (kind, answer), as
the process of a port does. The methods are `build`, which makes the Trainer, and `step`, whose answer is the loss and the parameters.
"""

import contextlib
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..conformance.child import Child
from ..conformance.worker import Answer, receive, send
from . import backends

__all__ = ["Remote"]


class Remote:
    """The process of one backend: a name of `backends.BACKENDS`, or a Python file that defines a class `Trainer` with the same face.

    Answers are ("ready", None); ("missing", how to install it); ("step", (loss, parameters)); ("error", what the backend raised); ("crash"
    or "hang", how its process ended).
    """

    def __init__(self, backend: str, threads: int) -> None:
        self._child = Child(__name__, backend, threads, "the backend")

    def ask(self, method: str, *arguments: Any) -> None:
        """Puts a question and does not wait for the answer."""
        with contextlib.suppress(OSError):  # the process has ended, which `answer` says
            self._child.ask(method, *arguments)

    def answer(self, limit: float) -> Answer:
        """The answer to the oldest question, or to the start, that has none yet, within so many seconds."""
        return self._child.answer(limit)

    def close(self) -> None:
        """Ends the process, whatever it does."""
        self._child.close()


def _load(backend: str) -> Callable[..., backends.Trainer]:
    if not backend.endswith(".py"):
        return backends.trainer(backend)
    sys.path.insert(0, str(Path(backend).resolve().parent))
    defined = runpy.run_path(backend)
    if "Trainer" not in defined:
        raise ValueError(f"{backend} must define a class Trainer")
    return defined["Trainer"]


class _Server:
    """The other end: the Trainer."""

    def __init__(self, backend: str) -> None:
        self._make = _load(backend)

    def build(self, *arguments: Any) -> Answer:
        self._trainer = self._make(*arguments)
        return "ready", None

    def step(self, *arguments: Any) -> Answer:
        loss = float(self._trainer.train_step(*arguments))
        prefix = "parameters."
        state = self._trainer.state()
        return "step", (loss, {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)})


def _reply(action: Callable[[], Answer]) -> Answer:
    try:
        return action()
    except backends.MissingBackend as error:
        return "missing", str(error)
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"


def main() -> None:
    """Serves one backend until standard input ends; what the backend prints goes to standard error."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    server: list[_Server] = []

    def start() -> Answer:
        server.append(_Server(sys.argv[1]))
        return "ready", None

    send(answers, _reply(start))
    while server:
        try:
            method, *arguments = receive(requests)
        except EOFError:
            return
        send(answers, _reply(lambda: getattr(server[0], method)(*arguments)))  # noqa: B023 - called at once


if __name__ == "__main__":
    main()
