"""Loads what `--from` names: a class, or a function that returns a module, in a file or an importable module."""

import contextlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from reference_numpy.suggestions import known

from ...common.reading import read_bytes
from .failures import FAILURES, failure, limited


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
        if not name:
            raise ValueError(f"a class of {where} must be named, as in {where}:Model; it has {', '.join(_candidates(module)) or 'none'}")
        if not callable(getattr(module, name, None)):
            known("class", [name], _candidates(module) or [name])
            raise ValueError(f"{name} of {where} must be a class or a function")
        own = module.__name__ == Path(where).stem  # not part of a package, which is found from here
        yield Source(module, name, str(Path(where).resolve().parent) if where.endswith(".py") and own else "")
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


def _candidates(module: ModuleType) -> list[str]:
    """Returns the classes that the module defines itself."""
    return [name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__]
