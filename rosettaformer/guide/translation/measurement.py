"""What every snippet gives, measured now: a process for each framework, side by side."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...conformance.ports.process import QUICK_XLA
from ...processes import Child
from .table import FRAMEWORKS

__all__ = ["Values", "ask", "examples", "measure"]

LIMIT = 300.0  # seconds for all snippets of a framework
# The processor alone: what is measured is then the same on every machine.
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}

# row -> framework -> "code" or "measure" -> value
Values = Mapping[str, Mapping[str, Mapping[str, Any]]]


def measure(only: Sequence[str] = (), cpus: int = 2) -> tuple[Values, Mapping[str, Any]]:
    """The values of the rows with these ids, by default of all, and what the worked example gives, by framework.

    Raises ValueError where a process or a snippet fails, naming all of them.
    """
    with ThreadPoolExecutor(cpus) as pool:
        answers = dict(zip(FRAMEWORKS, pool.map(lambda framework: ask(framework, only), FRAMEWORKS), strict=True))
    values: dict[str, dict[str, dict[str, Any]]] = {}
    problems = []
    for framework, (column, _) in answers.items():
        for row, parts in column.items():
            problems += [f"{row}.{framework}.{part}: {found['error']}" for part, found in parts.items() if "error" in found]
            values.setdefault(row, {})[framework] = {part: found.get("value") for part, found in parts.items()}
    if problems:
        raise ValueError("snippets that fail:\n  " + "\n  ".join(problems))
    return values, {framework: example for framework, (_, example) in answers.items()}


def ask(framework: str, only: Sequence[str] = ()) -> tuple[dict[str, Any], Any]:
    """What the process of one framework answers: every value or error, with its seconds, and the worked example."""
    environment = ENVIRONMENT | ({"XLA_FLAGS": QUICK_XLA} if framework == "flax" else {})
    child = Child(f"{__package__}.server", framework, 2, f"the {framework} snippets'", environment=environment)
    try:
        _answered(framework, child.answer)
        child.ask("values", list(only), limit=LIMIT)
        values = _answered(framework, child.answer)
        if only:
            return values, None
        child.ask("example", limit=LIMIT)
        return values, _answered(framework, child.answer)
    finally:
        child.close()


def _answered(framework: str, answer: Callable[..., tuple[str, Any]]) -> Any:
    kind, value = answer(LIMIT)
    if kind != "answer":
        raise ValueError(f"the snippets of {framework} must run; {value}")
    return value
