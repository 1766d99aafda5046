"""Renders chat templates in a process of its own: they come from others, and may never end or need any amount of memory.

Source: transformers/utils/chat_template_utils.py, 5.23.
"""

import importlib.metadata
import json
import resource
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import jinja2
import numpy as np
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..processes import Answer, Child, message, serve_methods

STARTING, LIMIT = 60.0, 8.0  # seconds for the start of the process, and for a template
MEMORY = 2 << 30  # bytes that the process may have


class Renderer:
    """The process, which starts when a template comes, and again after one that did not end. limit: seconds for a template."""

    def __init__(self, limit: float = LIMIT) -> None:
        self._limit = limit
        self._child: Child | None = None

    def check(self, template: str) -> None:
        """Raises ValueError if the text is no template."""
        self._asked("check", template)

    def render(self, template: str, given: Mapping[str, Any]) -> str:
        """Returns the text that a template makes of these variables. Raises ValueError if it makes none."""
        text: bytes = self._asked("render", template, json.dumps(given)).tobytes()
        return text.decode("utf-8", "surrogatepass")

    def close(self) -> None:
        """Ends the process."""
        if self._child is not None:
            self._child.close()
        self._child = None

    def _asked(self, method: str, *arguments: str) -> Any:
        kind, answer = self._answer(method, *arguments)
        if kind == "hang":
            answer = f"it did not end within {self._limit:g} s"
        if kind != "made":
            raise ValueError(answer)
        return answer

    def _answer(self, *question: str) -> Answer:
        if self._child is None or not self._child.running:
            self.close()
            self._child = Child(__name__, "", 1, "the template")
            if (greeting := self._child.answer(STARTING))[0] != "made":
                return greeting
        self._child.ask(*question, limit=self._limit)
        return self._child.answer(self._limit)


class _Server:
    def __init__(self) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        self._environment = _environment()

    def check(self, template: str) -> None:
        self._environment.from_string(template)

    def render(self, template: str, given: str) -> np.ndarray:
        text = self._environment.from_string(template).render(**json.loads(given))
        return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)


def _reply(call: Callable[[], Any]) -> Answer:
    try:
        return "made", call()
    except MemoryError:
        return "error", f"it needs more than {MEMORY >> 30} GiB of memory"
    except BaseException as error:  # whatever an expression of the template raises
        return "error", message(error)


class _Generation(Extension):
    """The block `{% generation %}`, which marks what the model said, for training; it is its content."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Any) -> str:
        return str(caller())


class _Dict:
    """`dict` in a template, without its attributes."""

    def __call__(self, *arguments: Any, **named: Any) -> dict[Any, Any]:
        return dict(*arguments, **named)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


class _Namespace(jinja2.utils.Namespace):
    """`namespace` in a template, without names that begin with an underscore, which lead to Python's own."""

    def __init__(*arguments: Any, **named: Any) -> None:
        self, *others = arguments  # so that self may be one of the names
        attributes = dict(*others, **named)
        for name in attributes:
            _require_public(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_public(name)
        super().__setitem__(name, value)


def _require_public(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template cannot store {name!r} in a namespace")


def _raise(message: Any) -> None:
    raise jinja2.TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:  # fmt: skip
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    """Returns what a template may use: templates come from others, and run in a sandbox that changes nothing, of 3.1.6 or later."""
    installed = importlib.metadata.version("jinja2")
    if tuple(int(part) for part in installed.split(".")[:3] if part.isdigit()) < (3, 1, 6):
        raise ValueError(f"chat templates need Jinja2 3.1.6, since templates can leave the sandbox of earlier ones; got {installed}")
    result = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    result.filters["tojson"] = _to_json
    result.globals |= {"raise_exception": _raise, "strftime_now": _now, "dict": _Dict(), "namespace": _Namespace}
    return result


if __name__ == "__main__":
    serve_methods(_Server, _reply)
