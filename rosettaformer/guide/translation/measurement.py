"""Measures the value of every snippet, with one process per framework in parallel."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ...common.processes import Child
from ...judge.ports.process import QUICK_XLA
from .table import FRAMEWORKS

LIMIT = 1800.0  # seconds for all snippets of a framework, on a busy machine too: it ends a process that hangs
# Only the processor: then the measurements are the same on every machine. JAX lowers a program sooner without the lines of its source.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}

# row -> framework -> "code", "measure" or "claims" -> value
Values = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Measured:
    """Values of all snippets, results of the worked examples, and the ports' weight tables."""

    values: Values
    examples: Mapping[str, Any] = field(default_factory=dict)
    layouts: Mapping[str, Any] = field(default_factory=dict)


def measure(only: Sequence[str] = (), cpus: int = 2) -> Measured:
    """Runs the snippets of the rows with these ids (default: all rows and the worked examples) and
    returns the results.

    Raises ValueError, listing all failures, if a process or a snippet fails.
    """
    with ThreadPoolExecutor(cpus) as pool:  # the slowest first
        answers = dict(pool.map(lambda framework: (framework, ask(framework, only)), reversed(FRAMEWORKS)))
    values: dict[str, dict[str, dict[str, Any]]] = {}
    problems = []
    for framework in FRAMEWORKS:
        for row, parts in answers[framework]["values"].items():
            problems += [f"{row}.{framework}.{part}: {found['error']}" for part, found in parts.items() if "error" in found]
            values.setdefault(row, {})[framework] = {part: found.get("value") for part, found in parts.items()}
    if problems:
        raise ValueError("snippets that fail:\n  " + "\n  ".join(problems))
    if only:
        return Measured(values)
    examples, layouts = ({framework: answers[framework][what] for framework in FRAMEWORKS} for what in ("example", "layout"))
    return Measured(values, examples, layouts)


def ask(framework: str, only: Sequence[str] = ()) -> dict[str, Any]:
    """Returns one framework's "values", and for all rows "example" and "layout"."""
    environment = ENVIRONMENT | ({"XLA_FLAGS": QUICK_XLA} if framework == "flax" else {})
    child = Child(f"{__package__}.snippet_process", framework, 2, f"the {framework} snippets'", environment=environment)
    try:
        _answered(framework, child.answer)
        answers = {}
        for method in ("values",) if only else ("values", "example", "layout"):
            child.ask(method, *([list(only)] if method == "values" else []), limit=LIMIT)
            answers[method] = _answered(framework, child.answer)
        return answers
    finally:
        child.close()


def _answered(framework: str, answer: Callable[..., tuple[str, Any]]) -> Any:
    kind, value = answer(LIMIT)
    if kind != "answer":
        raise ValueError(f"the snippets of {framework} must run; {value}")
    return value
