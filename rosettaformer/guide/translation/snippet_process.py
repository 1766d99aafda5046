"""The process of one framework: runs the snippets of its column and returns their values."""

import contextlib
import importlib
import re
import runpy
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

from ...common.processes import Answer, serve_methods, words
from . import example, snippets
from .table import FRAMEWORKS, PARTS, Cell, Row, rows

Value = dict[str, Any]
# The frameworks with a global generator start every snippet from the same random weights.
SEEDS = {"pytorch": "torch.manual_seed(0)", "keras": "keras.utils.set_random_seed(0)"}
PORTS = {
    "numpy": ("reference_numpy.layout", "CANONICAL"),
    "pytorch": ("impl_torch.weights", "TABLE"),
    "keras": ("impl_tf.weights", "TABLE"),
    "flax": ("impl_jax.weights", "TABLE"),
}


class Server:
    """One column. `values` returns for every row {"value": ...} or {"error": ...}, with "seconds".

    It covers `code`, `measure` and the number of `claims` that hold.
    """

    def __init__(self, framework: str) -> None:
        if framework not in FRAMEWORKS:
            raise ValueError(f"the framework must be one of {', '.join(FRAMEWORKS)}; got {framework!r}")
        warnings.simplefilter("ignore")
        self._framework = framework
        self._names = snippets.namespace(framework)

    def values(self, only: list[str]) -> dict[str, dict[str, Value]]:
        """Returns the values of the rows with these ids (default: all rows)."""
        chosen = [row for row in rows() if not only or row.id in only]
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # snippets write their files here
            return {row.id: {part: self._value(row, part) for part in PARTS if getattr(self._cell(row), part)} for row in chosen}

    def example(self) -> dict[str, Any]:
        """Returns the result of this framework's worked example."""
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            return snippets.plain(runpy.run_path(str(example.file(self._framework)))["results"](*example.task()))

    def layout(self) -> list[list[str]]:
        """Returns our port's weight table: canonical suffix, native name, native axes."""
        module, table = PORTS[self._framework]
        return [list(row) for row in getattr(importlib.import_module(module), table)]

    def _cell(self, row: Row) -> Cell:
        return row.cells[self._framework]

    def _value(self, row: Row, part: str) -> Value:
        started = time.monotonic()
        exec(SEEDS.get(self._framework, ""), self._names)
        try:
            value = self._held(row) if part == "claims" else self._executed(row, part)
            return {"value": value, "seconds": time.monotonic() - started}
        except Exception as error:
            return {"error": words(error), "seconds": time.monotonic() - started}

    def _names_of(self, row: Row) -> dict[str, Any]:
        return self._names | snippets.native(self._framework, snippets.given(row.given))

    def _executed(self, row: Row, part: str) -> Any:
        text = getattr(self._cell(row), part)
        return snippets.plain(snippets.execute(text, self._names_of(row), f"{row.id}.{self._framework}.{part}"))

    def _held(self, row: Row) -> int:
        """Returns the number of claims. Raises ValueError, listing all claims that fail."""
        claims = self._cell(row).claims
        origin = f"{row.id}.{self._framework}.claims"
        if refuted := list(snippets.refuted(claims, self._names_of(row), origin)):
            raise ValueError("\n".join(refuted))
        return len(re.findall("^assert ", claims, re.MULTILINE))


def _reply(action: Callable[[], Any]) -> Answer:
    try:
        return "answer", action()
    except Exception as error:
        return "error", words(error)


if __name__ == "__main__":
    serve_methods(lambda: Server(sys.argv[1]), _reply)
