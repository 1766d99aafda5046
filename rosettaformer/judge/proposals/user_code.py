"""The user's code: loads what `--from` names, stops a step of it that takes too long, and puts what it raises into words."""

import contextlib
import importlib
import inspect
import io
import os
import re
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from reference_numpy.suggestions import known

from ...common.processes import innermost, words
from ...common.reading import read_bytes

FAILURES = (Exception, SystemExit)  # what the user's code may raise
LIMIT = 300  # seconds for one step: an import, the building of a module, a call
# the beginnings of log lines of absl, and of TensorFlow before it
_LOGGED = re.compile(rb"WARNING: All log messages before absl::|[IWE]\d{4} \d\d:\d\d:\d+\.\d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] ")


class TooLong(BaseException):
    """Raised if a step takes too long; no code that handles errors catches it."""


@dataclass(frozen=True)
class Source:
    """A class or function that builds a module: the module that defines it, and its name there."""

    module: ModuleType
    name: str
    folder: str = ""  # of its file; empty if it is an importable module

    @property
    def make(self) -> Callable[..., Any]:
        return getattr(self.module, self.name)

    @property
    def rotates(self) -> bool:
        """Whether its file has a word of rotary positions, or it takes rotations."""
        with contextlib.suppress(OSError, TypeError):
            return bool(re.search(r"rope|rotary|rotate_half|freqs_cis|inv_freq", inspect.getsource(self.module), re.IGNORECASE))
        return False

    @property
    def imported(self) -> str:
        """Returns the lines that import it; a file in another folder than this one is found by its folder."""
        line = f"from {self.module.__name__} import {self.name}"
        return line if self.folder in ("", os.getcwd()) else f"sys.path.insert(0, {self.folder!r})\n{line}"


@contextlib.contextmanager
def loaded(text: str) -> Iterator[Source]:
    """Loads the class or function that `my_model.py:Model` or `package.module:Model` names; what its import leaves behind goes with the
    block.

    Raises ValueError if there is no such file or module, if its code fails, or if it has no such name.
    """
    where, _, name = text.partition(":")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    path = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        with limited(f"the import of {where}"), contextlib.chdir(os.getcwd()):
            module = _of_file(Path(where)) if where.endswith(".py") else _of_name(where)
        own = [one for one, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__]
        if not name:
            raise ValueError(f"a class of {where} must be named, as in {where}:Model; it has {', '.join(own) or 'none'}")
        if not callable(getattr(module, name, None)):
            known("class", [name], own or [name])
            raise ValueError(f"{name} of {where} must be a class or a function")
        alone = where.endswith(".py") and module.__name__ == Path(where).stem  # not part of a package, which is found from here
        yield Source(module, name, str(Path(where).resolve().parent) if alone else "")
    finally:
        sys.path[:] = path
        if where.endswith(".py"):
            sys.modules.pop(Path(where).stem, None)


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if not re.fullmatch(r"[^\W\d]\w*", path.stem):
        raise ValueError(f"a file that a port imports must have a Python name, such as my_model.py; got {path.name}")
    if path.stem in sys.modules:
        raise ValueError(f"a file that a port imports must not have the name of a module that Python already has: {path.name}")
    module = ModuleType(path.stem)
    module.__file__ = str(path.resolve())
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        exec(compile(read_bytes(path), path.resolve(), "exec"), module.__dict__)
    except FAILURES as error:
        sys.modules.pop(path.stem, None)
        if isinstance(error, ImportError) and (package := _package(path)):  # it imports its neighbours as a part of its package
            return _of_name(package)
        raise ValueError(f"{path} cannot be run: {failure(error)}") from error
    return module


def _package(path: Path) -> str:
    """Returns the name by which a file in a folder of this one is imported; empty if it has none."""
    with contextlib.suppress(ValueError):
        parts = path.resolve().with_suffix("").relative_to(Path.cwd()).parts
        return ".".join(parts) if len(parts) > 1 and all(part.isidentifier() for part in parts) else ""
    return ""


def _of_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except FAILURES as error:
        where = name or "the part before the colon"
        raise ValueError(f"{where} must be a file ending in .py or an importable module: {failure(error)}") from error


def failure(error: BaseException) -> str:
    """Returns the error and its message, without a terminal's codes for bold and colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", words(innermost(error)))


@contextlib.contextmanager
def limited(what: str) -> Iterator[None]:
    """Ends a step of the user's code that sleeps or loops: raises TooLong, again and again, after `LIMIT` seconds.

    Only in the main thread: no other gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"{what} takes longer than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LIMIT, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drops Python's warnings, standard output and the log lines of a framework's libraries while the block runs."""
    with _without_logs(), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Holds back what bypasses Python on the descriptor of standard error, and writes what is not a log line when the block has ended."""
    python, descriptor = sys.stderr, 2
    with tempfile.TemporaryFile() as held, open(os.dup(descriptor), "w", buffering=1, encoding="utf-8") as real:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            python.flush()
            sys.stderr = real if python.fileno() == descriptor else python
        os.dup2(held.fileno(), descriptor)
        try:
            yield
        finally:
            os.dup2(real.fileno(), descriptor)
            sys.stderr = python
            held.seek(0)
            for line in held:
                if not _LOGGED.match(line):
                    os.write(descriptor, line)
