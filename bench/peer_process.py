"""Starts the rows' processes and sends them requests."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rosettaformer.common.processes import Child

from .timed_rows import Result
from .workloads import Task

# framework -> its processes, each a module of `peers`
PROCESSES = {"numpy": ("numpy",), "torch": ("torch", "ctranslate2"), "tf": ("tf",), "jax": ("jax",)}
EXPORT = "onnx"  # the process of our exported model, in addition to torch's
EXPORTED = ("W1", "W3", "W11")  # workloads with a row for it
LIMIT = 3600.0  # seconds for an answer


@dataclass(frozen=True)
class Options:
    """How to run rows.

    only: unless empty, run only rows whose name contains one of these. before: another checkout of
    this project, whose rows are peers of ours.
    """

    frameworks: tuple[str, ...]
    rounds: int = 9
    threads: int = 1
    device: str = "cpu"
    only: tuple[str, ...] = ()
    before: str = ""
    progress: Callable[[str], None] = lambda text: None


class PeerProcess:
    """The process of one module of `peers`. environment: additional variables. before: it runs another checkout."""

    before = False

    def __init__(self, framework: str, module: str, options: Options, environment: Mapping[str, str] | None = None) -> None:
        self.framework, self.module = framework, module
        self._child = Child(f"{__package__}.worker", module, options.threads, f"the {module} rows'", environment=environment)
        kind, answer = self._child.answer(LIMIT)
        self.failed = None if kind == "answer" else failure(Result(framework), kind, answer)
        self.described = ""
        if not self.failed:
            kind, self.described = self.ask("describe", options.device)
            if kind != "answer":
                self.close()
                raise ValueError(self.described)

    def ask(self, method: str, *arguments: Any) -> tuple[str, Any]:
        self._child.ask(method, *arguments, limit=LIMIT)
        return self._child.answer(LIMIT)

    def answer(self, method: str, *arguments: Any) -> Any:
        """Returns the answer, or None."""
        kind, answer = self.ask(method, *arguments)
        return answer if kind == "answer" else None

    def close(self) -> None:
        self._child.close()

    @property
    def second(self) -> bool:
        """Whether another process of the framework reports what is missing."""
        return self.module != PROCESSES[self.framework][0]


def modules(framework: str, task: Task) -> tuple[str, ...]:
    """Returns the processes with rows of the task, without NumPy's slow searches."""
    if framework == "numpy":
        return PROCESSES["numpy"] if task.kind in ("forward", "encoder") and task.peers else ()
    peers = task.peers and (task.published or task.decodes)
    found = PROCESSES[framework] if peers else PROCESSES[framework][:1]
    exported = framework == "torch" and task.workload in EXPORTED and task.kind != "training"
    return (*found, *(EXPORT,) * exported)


def failure(result: Result, kind: str, answer: Any) -> Result:
    """Returns the result of a row, or of a whole process, that failed."""
    if kind == "missing":
        result.status, (package, install) = "missing", answer
        result.message = f"needs {package}: {install}" if result.name else install
    else:
        result.status, result.message = "error", str(answer)
    return result


@contextlib.contextmanager
def started(options: Options, which: Sequence[tuple[str, str]]) -> Iterator[list[PeerProcess]]:
    with contextlib.ExitStack() as stack:
        processes = []
        for framework, module in which:
            options.progress(f"starting {module}")
            processes.append(stack.enter_context(contextlib.closing(PeerProcess(framework, module, options))))
            if options.before and module == framework:
                found = {"PYTHONPATH": options.before, "PYTHONSAFEPATH": "1"}  # imports neither this checkout nor the working directory
                processes.append(stack.enter_context(contextlib.closing(PeerProcess(framework, module, options, found))))
                processes[-1].before = True
        yield processes
