"""Runs the four implementations as processes that answer."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..conformance import runner
from ..conformance.ports.process import Worker
from ..processes import Answer, Child, cores

Ask = Callable[..., Answer]

# name -> what the judge loads as a port
IMPLEMENTATIONS = {"numpy": "rosettaformer.model_report.plain", "torch": "torch", "tf": "tf", "jax": "jax"}
# name -> title on the page
NAMES = {"numpy": "NumPy", "torch": "PyTorch", "tf": "TensorFlow", "jax": "JAX"}


@contextlib.contextmanager
def opened(names: Sequence[str], limit: float) -> Iterator[dict[str, Worker]]:
    """Starts the processes of these implementations, and ends them after the block; a greeting says which of them cannot be asked."""
    threads = max(1, cores() // max(1, len(names)))
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(max(1, len(names))) as pool:
        started = pool.map(lambda name: runner.open_worker(IMPLEMENTATIONS[name], threads, limit), names)
        yield {name: stack.enter_context(contextlib.closing(worker)) for name, worker in zip(names, started, strict=True)}


@contextlib.contextmanager
def together(
    workers: Mapping[str, Any], question: Callable[[Any], Answer], in_turn: bool = False
) -> Iterator[Callable[[], dict[str, Answer]]]:
    """Asks all of them the question at once, or in turn; yields a function that waits for their answers, and returns them by name."""
    with ThreadPoolExecutor(1 if in_turn else max(1, len(workers))) as pool:
        asked = {name: pool.submit(question, worker) for name, worker in workers.items()}
        yield lambda: {name: one.result() for name, one in asked.items()}


@contextlib.contextmanager
def trainees(names: Sequence[str], threads: int, limit: float) -> Iterator[dict[str, Ask]]:
    """Starts the processes that train and are timed, with that many threads each; yields functions that ask them, by name. For one that
    could not start every answer is the reason.
    """
    with contextlib.ExitStack() as stack:
        started = {}
        for name in names:
            child = Child(f"{__package__}.training_worker", name, threads, "the implementation")
            stack.callback(child.close)
            started[name] = child
        greetings = {name: child.answer(limit) for name, child in started.items()}

        def asking(name: str) -> Ask:
            def ask(method: str, *arguments: Any) -> Answer:
                if greetings[name][0] != "answer":
                    return greetings[name]
                started[name].ask(method, *arguments, limit=limit)
                return started[name].answer(limit)

            return ask

        yield {name: asking(name) for name in names}
