"""Builds the model that a side names, behind the face of `models.base`."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reference_numpy.suggestions import nearest

from ...common.processes import words
from ...files.artefacts.opening import open_artefact
from ...judge.ports import port as ports
from .. import models
from ..models.base import Model, wrapped
from ..models.own import of_checkpoint, of_component
from .libraries import loaded
from .sides import Side

FREE: Mapping[str, Any] = {}


def opened(side: Side, port: ports.Port | None = None, fixed: Mapping[str, Any] = FREE, canonical: bool = False) -> Model:
    """Returns the side's model; fixed, canonical: of a component. Raises ValueError if it cannot be built, and MissingBackend."""
    if side.kind == "checkpoint":
        return of_checkpoint(Path(side.path), side.name)
    if side.kind == "loaded":
        return loaded(side)
    if side.kind == "artefact":
        open_artefact(Path(side.path))  # examined before anything that reads it is imported
        model: Model = importlib.import_module(f"{models.__name__}.onnx_model").OnnxModel(Path(side.path))
        return model
    if port:
        return of_component(port, side.component, {**fixed, **port.config, **side.settings}, canonical)
    make = _maker(side)
    return wrapped(make(), make, side.text)


def _maker(side: Side) -> Callable[[], Any]:
    module = _module(Path(side.path)) if side.path.endswith(".py") else _imported(side.path)
    found = getattr(module, side.name, None)
    if found is None:
        candidates = [
            name for name, value in vars(module).items() if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        has = ", ".join(candidates) or "no class or function"
        raise ValueError(f"{side.path} has no {side.name}{nearest(side.name, candidates)}; it has {has}")
    if not callable(found):
        return lambda: found

    def make() -> Any:
        given = dict(side.settings)
        names = _names(found)
        if "rngs" in names and "rngs" not in given:
            given["rngs"] = importlib.import_module("flax.nnx").Rngs(0)
        unknown = [name for name in given if names and name not in names and "**" not in names]
        if unknown:
            raise ValueError(f"{side.text} takes no {', '.join(f'{name}{nearest(name, names)}' for name in unknown)}")
        try:
            return found(**given)
        except TypeError as error:
            if "required positional argument" in str(error) or "required keyword-only" in str(error):
                raise ValueError(f"{side.text} must be built without arguments, or with those that --set gives: {error}") from None
            raise

    return make


def _names(function: Any) -> list[str]:
    """The arguments of a function, or of a class's constructor, which a metaclass may hide."""
    try:
        found = [*inspect.signature(function.__init__ if inspect.isclass(function) else function).parameters.values()]
    except (TypeError, ValueError):
        return []
    return ["**" if each.kind is each.VAR_KEYWORD else each.name for each in found[inspect.isclass(function) :]]


def _imported(path: str) -> Any:
    """The module of a dotted path, from the working directory or installed."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            raise ValueError(f"there is no module {path}; a file is named with its end, as in {path}.py:Model") from None
        raise ValueError(f"{path} cannot be imported: {words(error)}") from error
    except Exception as error:
        raise ValueError(f"{path} cannot be imported: {words(error)}") from error


def _module(path: Path) -> Any:
    """The file, run as a module of its own; what it imports from its folder is found."""
    before = list(sys.path)
    try:
        return ports.load_file(path)
    except Exception as error:
        if reason := ports.unavailable(error):
            raise ports.MissingBackend(reason) from None
        raise ValueError(f"{path} cannot be run: {words(error)}") from error
    finally:
        sys.path[:] = [str(path.resolve().parent), *before]
