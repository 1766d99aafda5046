"""Builds the model of a side as a `models.base.Model`."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from reference_numpy.suggestions import nearest

from ...common.extras import OTHERS, MissingBackend, installed
from ...common.processes import words
from ...files.artefacts.opening import open_artefact
from ...judge.ports import port as ports
from .. import models
from ..models.base import Model, wrapped
from ..models.own import of_checkpoint, of_component
from .sides import Side

FREE: Mapping[str, Any] = {}
TOKENS = {"input_ids": "t=7", "decoder_input_ids": "s=5"}  # random tokens and their lengths
SAMPLES = 1600  # length of random audio


def opened(side: Side, port: ports.Port | None = None, fixed: Mapping[str, Any] = FREE, canonical: bool = False) -> Model:
    """Returns the side's model.

    fixed, canonical: see `of_component`. Raises ValueError, MissingBackend.
    """
    if side.kind == "checkpoint":
        return of_checkpoint(Path(side.path), side.name)
    if side.kind == "loaded":
        return _loaded(side)
    if side.kind == "artefact":
        open_artefact(Path(side.path))  # validate it before importing a runtime
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
            raise ValueError(f"{side.text} has no argument {', '.join(f'{name}{nearest(name, names)}' for name in unknown)}")
        try:
            return found(**given)
        except TypeError as error:
            if "required positional argument" in str(error) or "required keyword-only" in str(error):
                raise ValueError(f"{side.text} cannot be built without arguments: {error}; pass them with --set NAME=VALUE") from None
            raise

    return make


def _names(function: Any) -> list[str]:
    """Returns the arguments of a function or constructor, which a metaclass may hide."""
    try:
        found = [*inspect.signature(function.__init__ if inspect.isclass(function) else function).parameters.values()]
    except (TypeError, ValueError):
        return []
    return ["**" if each.kind is each.VAR_KEYWORD else each.name for each in found[inspect.isclass(function) :]]


def _imported(path: str) -> Any:
    """Imports a module by its dotted path, from the working directory or an installed package."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            raise ValueError(f"there is no module {path}; for a file, use {path}.py:NAME") from None
        raise ValueError(f"{path} cannot be imported: {words(error)}") from error
    except Exception as error:
        raise ValueError(f"{path} cannot be imported: {words(error)}") from error


def _module(path: Path) -> Any:
    """Runs a file as a module; imports from its folder work."""
    before = list(sys.path)
    try:
        return ports.load_file(path)
    except Exception as error:
        if reason := ports.unavailable(error):
            raise ports.MissingBackend(reason) from None
        raise ValueError(f"{path} failed: {words(error)}") from error
    finally:
        sys.path[:] = [str(path.resolve().parent), *before]


def transformers_model(side: Side) -> Any:
    """Returns the module that transformers loads. Raises like `_loaded`."""
    return _made(side, _transformers(side)[0])


def _loaded(side: Side) -> Model:
    """Returns the model loaded by a library. Raises ValueError if that fails, MissingBackend."""
    make, inputs = (_transformers if side.name == "transformers" else _keras_hub)(side)
    model = wrapped(_made(side, make), make, side.text)
    takes = {name for name, _ in model.about()["arguments"]}
    model.defaults = tuple(f"{name}: b=2 {axes}" for name, axes in inputs.items() if name in takes)
    return model


def _made(side: Side, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (OSError, KeyError, ImportError, RuntimeError) as error:
        raise ValueError(f"{side.text} cannot be loaded by {side.name}: {error}") from error


def require(library: str) -> None:
    """Raises MissingBackend if the library is not installed."""
    name = library.replace("-", "_")
    if not installed(name):
        raise MissingBackend(f"{library} is not installed: {OTHERS[name]}")


def _library(name: str) -> Any:
    require(name)
    return importlib.import_module(name)


def _transformers(side: Side) -> tuple[Any, Mapping[str, str]]:
    """Returns a function that builds the model or its backbone, and random inputs by name."""
    transformers = _library("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(side.path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{side.text} has a config that transformers cannot read: {error}") from error
    named = getattr(transformers, (config.architectures or ["AutoModel"])[0], transformers.AutoModel)
    kind = transformers.AutoModel if side.component == "backbone" else named
    options = {"attn_implementation": "eager", "experts_implementation": "eager", "dtype": "float32", **side.settings}
    return lambda: kind.from_pretrained(side.path, **options), _random_inputs(config)


def _random_inputs(config: Any) -> dict[str, str]:
    """Returns the axes and dtypes of the inputs whose sizes a config of transformers has."""
    parts = [config, *(getattr(config, name, None) for name in ("encoder", "decoder"))]

    def sizes(name: str) -> list[Any]:
        return [value for part in parts if (value := getattr(part, name, None))]

    found = {name: f"{length} int64 <{min(sizes('vocab_size'))}" for name, length in TOKENS.items() if sizes("vocab_size")}
    for size in sizes("image_size"):
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return found | {"pixel_values": f"y={height} x={width} c={[*sizes('num_channels'), 3][0]} float32"}
    if sizes("conv_stride"):
        return found | {"input_values": f"t={SAMPLES} float32"}
    if sizes("num_mel_bins") and sizes("max_source_positions"):
        return found | {"input_features": f"m={sizes('num_mel_bins')[0]} t={2 * sizes('max_source_positions')[0]} float32"}
    return found


def _keras_hub(side: Side) -> tuple[Any, Mapping[str, str]]:
    if not installed("sentencepiece"):  # keras_hub imports it for tokenizers, which backbones do not need
        stub: Any = ModuleType("sentencepiece")
        stub.SentencePieceProcessor = None
        sys.modules["sentencepiece"] = stub
    models = _library("keras_hub").models
    return lambda: models.Backbone.from_preset(side.path, **side.settings), FREE
