"""The four implementations as processes that answer."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..conformance import runner
from ..conformance.ports.process import Worker
from ..processes import Answer, cores

__all__ = ["IMPLEMENTATIONS", "NAMES", "opened", "together"]

# name -> what the judge loads as a port
IMPLEMENTATIONS = {"numpy": "rosettaformer.model_report.plain", "torch": "torch", "tf": "tf", "jax": "jax"}
# name -> what it is called on the page
NAMES = {"numpy": "NumPy", "torch": "PyTorch", "tf": "TensorFlow", "jax": "JAX"}


@contextlib.contextmanager
def opened(names: Sequence[str], limit: float) -> Iterator[dict[str, Worker]]:
    """The processes of these implementations, which are ended after the block; a greeting says which of them cannot be asked."""
    threads = max(1, cores() // max(1, len(names)))
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(max(1, len(names))) as pool:
        started = pool.map(lambda name: runner.open_worker(IMPLEMENTATIONS[name], threads, limit), names)
        yield {name: stack.enter_context(contextlib.closing(worker)) for name, worker in zip(names, started, strict=True)}


@contextlib.contextmanager
def together(workers: Mapping[str, Any], question: Callable[[Any], Answer]) -> Iterator[Callable[[], dict[str, Answer]]]:
    """Puts the question to all of them at once; what the block is given waits for their answers, by name."""
    with ThreadPoolExecutor(max(1, len(workers))) as pool:
        asked = {name: pool.submit(question, worker) for name, worker in workers.items()}
        yield lambda: {name: one.result() for name, one in asked.items()}
