"""The user's code: loads what `--from` names, limits its time, and formats its errors."""

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

FAILURES = (Exception, SystemExit)  # errors expected from the user's code
LIMIT = 300  # seconds for one step: an import, building a module, a call
# prefixes of log lines of absl, and of TensorFlow before absl
_LOGGED = re.compile(rb"WARNING: All log messages before absl::|[IWE]\d{4} \d\d:\d\d:\d+\.\d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] ")


class TooLong(BaseException):
    """Raised if a step takes too long. Bypasses the user's exception handlers."""


@dataclass(frozen=True)
class Source:
    """A class or function that builds a module: its defining module and its name there."""

    module: ModuleType
    name: str
    folder: str = ""  # of its file; "" for an importable module

    @property
    def make(self) -> Callable[..., Any]:
        return getattr(self.module, self.name)

    @property
    def rotates(self) -> bool:
        """Whether its file mentions RoPE, or it takes rotations."""
        with contextlib.suppress(OSError, TypeError):
            return bool(re.search(r"rope|rotary|rotate_half|freqs_cis|inv_freq", inspect.getsource(self.module), re.IGNORECASE))
        return False

    @property
    def imported(self) -> str:
        """Returns the lines that import it, with its folder in sys.path if necessary."""
        line = f"from {self.module.__name__} import {self.name}"
        return line if self.folder in ("", os.getcwd()) else f"sys.path.insert(0, {self.folder!r})\n{line}"


@contextlib.contextmanager
def loaded(text: str) -> Iterator[Source]:
    """Loads what `my_model.py:Model` or `package.module:Model` names, until the block ends.

    Raises ValueError if the file, module or name does not exist, or its code fails.
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
            raise ValueError(f"append the class to {where}, as in {where}:Model; its classes are {', '.join(own) or 'none'}")
        if not callable(getattr(module, name, None)):
            known("class", [name], own or [name])
            raise ValueError(f"{name} in {where} is not a class or function")
        alone = where.endswith(".py") and module.__name__ == Path(where).stem  # not part of a package that is importable from here
        yield Source(module, name, str(Path(where).resolve().parent) if alone else "")
    finally:
        sys.path[:] = path
        if where.endswith(".py"):
            sys.modules.pop(Path(where).stem, None)


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    if not re.fullmatch(r"[^\W\d]\w*", path.stem):
        raise ValueError(f"{path.name} cannot be imported: rename it to a Python name, such as my_model.py")
    if path.stem in sys.modules:
        raise ValueError(f"{path.name} has the name of a Python module that is already imported: rename the file")
    module = ModuleType(path.stem)
    module.__file__ = str(path.resolve())
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        exec(compile(read_bytes(path), path.resolve(), "exec"), module.__dict__)
    except FAILURES as error:
        sys.modules.pop(path.stem, None)
        if isinstance(error, ImportError) and (package := _package(path)):  # its relative imports need its package
            return _of_name(package)
        raise ValueError(f"{path} cannot be run: {failure(error)}") from error
    return module


def _package(path: Path) -> str:
    """Returns the dotted name of a file in a subfolder of the current folder; "" if it has none."""
    with contextlib.suppress(ValueError):
        parts = path.resolve().with_suffix("").relative_to(Path.cwd()).parts
        return ".".join(parts) if len(parts) > 1 and all(part.isidentifier() for part in parts) else ""
    return ""


def _of_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except FAILURES as error:
        where = name or "the part before the colon"
        raise ValueError(f"{where} is not a .py file or an importable module: {failure(error)}") from error


def failure(error: BaseException) -> str:
    """Returns the error's class and message, without terminal escape sequences."""
    return re.sub(r"\x1b\[[0-9;]*m", "", words(innermost(error)))


@contextlib.contextmanager
def limited(what: str) -> Iterator[None]:
    """Raises TooLong, repeatedly, once a step of the user's code has run for `LIMIT` seconds.

    Works only in the main thread, since other threads get no signals.
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
    """Suppresses warnings, standard output and frameworks' log lines during the block."""
    with _without_logs(), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Holds back standard error, and writes all but log lines after the block."""
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
