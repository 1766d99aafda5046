"""Shared by the frameworks' `calls`: decides which calls are reported, and numbers them."""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock


@dataclass(eq=False)
class ModuleCall:
    """A call of a module. index: number of earlier calls. function: what is called, unbound."""

    path: str
    index: int
    module: Any
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Enter = Callable[[ModuleCall], None]  # at the start of a call; may replace its `args` and `kwargs`
Leave = Callable[[ModuleCall, Any], None]  # at the end of a call, with its output


class Recording:
    """Reports calls of modules. path_of: a module's path, None if its calls are not reported.

    A call within another call of the same module, such as that of its base class, does not count.
    Calls made by `enter` and `leave` are not reported.
    """

    def __init__(self, path_of: Callable[[Any], str | None], enter: Enter, leave: Leave) -> None:
        self._path_of, self._enter, self._leave = path_of, enter, leave
        self._counts: Counter[str] = Counter()
        self._open: list[tuple[Any, ModuleCall | None]] = []
        self._silent = False

    def begin(self, module: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Reports the start of a call; returns the arguments to use."""
        path = None if self._silent or any(call and call.module is module for _, call in self._open) else self._path_of(module)
        call = None
        if path is not None:
            call = ModuleCall(path, self._counts[path], module, function, args, kwargs)
            self._counts[path] += 1
            self._report(self._enter, call)
            args, kwargs = call.args, call.kwargs
        self._open.append((module, call))
        return args, kwargs

    def end(self, module: Any, output: Any) -> None:
        """Reports the end of a module's latest call; open calls within it have failed."""
        opened: Any = None
        while opened is not module:
            opened, call = self._open.pop()
        if call:
            self._report(self._leave, call, output)

    def around(self, call: Callable[..., Any], module: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs `call`, reports it, and returns its output."""
        args, kwargs = self.begin(module, function, args, kwargs)
        output = call(*args, **kwargs)
        self.end(module, output)
        return output

    def _report(self, function: Callable[..., None], *arguments: Any) -> None:
        self._silent = True
        try:
            function(*arguments)
        finally:
            self._silent = False


def of_rows(rows: Iterable[tuple[str, Any]]) -> Callable[[Any], str | None]:
    """Returns a function from modules to paths; a shared module has its first path."""
    kept = [*rows][::-1]  # keeps the modules, so that their ids stay unique
    paths = {id(module): path for path, module in kept}
    return lambda module: paths.get(id(module))


@contextlib.contextmanager
def patched(rows: Iterable[tuple[str, Any]], enter: Enter, leave: Leave, function: Callable[[Any], Any]) -> Iterator[None]:
    """Reports calls by patching `__call__` of the modules' classes, if there are no hooks."""
    rows = [*rows]
    recording = Recording(of_rows(rows), enter, leave)

    def reported(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            return recording.around(functools.partial(call, module), module, function(module), args, kwargs)

        return __call__

    with contextlib.ExitStack() as stack:
        for kind in dict.fromkeys(type(module) for _, module in rows):
            if hasattr(kind, "__call__"):  # noqa: B004
                stack.enter_context(mock.patch.object(kind, "__call__", reported(kind.__call__)))
        yield
