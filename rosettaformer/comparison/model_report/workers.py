"""Runs the implementations as processes that answer: our four, and transformers where it can load the folder."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...common.processes import Answer, Child, thread_share
from ...judge.ports.process import Worker
from ...judge.ports.session import open_worker

Ask = Callable[..., Answer]

# name -> what the judge loads as a port
OWN = {"numpy": "rosettaformer.comparison.model_report.plain", "torch": "torch", "tf": "tf", "jax": "jax"}
LIBRARY = "transformers"
IMPLEMENTATIONS = (*OWN, LIBRARY)
# name -> title on the page
NAMES = {"numpy": "NumPy", "torch": "PyTorch", "tf": "TensorFlow", "jax": "JAX", LIBRARY: "transformers"}


@contextlib.contextmanager
def opened(ports: Mapping[str, str], limit: float) -> Iterator[dict[str, Worker]]:
    """Starts the processes of ports, by name, and ends them after the block; a greeting says which of them cannot be asked."""
    threads = thread_share(len(ports))
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(max(1, len(ports))) as pool:
        started = pool.map(lambda port: open_worker(port, threads, limit), ports.values())
        yield {name: stack.enter_context(contextlib.closing(worker)) for name, worker in zip(ports, started, strict=True)}


@contextlib.contextmanager
def together(
    workers: Mapping[str, Any], question: Callable[[Any], Answer], in_turn: bool = False
) -> Iterator[Callable[[], dict[str, Answer]]]:
    """Asks all of them the question at once, or in turn; yields a function that waits for their answers, and returns them by name."""
    with ThreadPoolExecutor(1 if in_turn else max(1, len(workers))) as pool:
        asked = {name: pool.submit(question, worker) for name, worker in workers.items()}
        yield lambda: {name: one.result() for name, one in asked.items()}


@contextlib.contextmanager
def trainees(arguments: Mapping[str, str], limit: float) -> Iterator[dict[str, Ask]]:
    """Starts the processes that train and are timed, each with all threads; yields functions that ask them, by name. For one that could
    not start every answer is the reason. arguments: what `training_worker` is told, by name.
    """
    with contextlib.ExitStack() as stack:
        started = {}
        for name, argument in arguments.items():
            child = Child(f"{__package__}.training_worker", argument, thread_share(), "the implementation")
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

        yield {name: asking(name) for name in arguments}
