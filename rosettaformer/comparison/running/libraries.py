"""Models that a library loads from a folder: transformers, and KerasHub its presets."""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...common.extras import OTHERS, MissingBackend, installed
from ..models.base import Model, wrapped
from .sides import Side

TOKENS = {"input_ids": "t=7", "decoder_input_ids": "s=5"}  # the random inputs, with their lengths


def transformers_model(side: Side) -> Any:
    """Returns the module that transformers loads. Raises as `loaded`."""
    return _made(side, _transformers(side)[0])


def loaded(side: Side) -> Model:
    """Returns the model of a side. Raises ValueError if the library cannot load the folder, and MissingBackend."""
    make, vocabulary = (_transformers if side.name == "transformers" else _keras_hub)(side)
    model = wrapped(_made(side, make), make, side.text)
    takes = {name for name, _ in model.about()["arguments"]}
    if vocabulary and "input_ids" in takes:
        model.defaults = tuple(f"{name}: b=2 {axes} int64 <{vocabulary}" for name, axes in TOKENS.items() if name in takes)
    return model


def _made(side: Side, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (OSError, KeyError, ImportError, RuntimeError) as error:
        raise ValueError(f"{side.text}: {side.name} cannot load the folder: {error}") from error


def require(library: str) -> None:
    """Raises MissingBackend if the library is not installed."""
    name = library.replace("-", "_")
    if not installed(name):
        raise MissingBackend(f"{library} is not installed: {OTHERS[name]}")


def _imported(name: str) -> Any:
    require(name)
    return importlib.import_module(name)


def _transformers(side: Side) -> tuple[Any, int]:
    """The model with the head that `architectures` names, or without a head."""
    transformers = _imported("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(side.path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{side.text}: transformers cannot read the config: {error}") from error
    named = getattr(transformers, (config.architectures or ["AutoModel"])[0], transformers.AutoModel)
    kind = transformers.AutoModel if side.component == "backbone" else named
    options = {"attn_implementation": "eager", "dtype": "float32", **side.settings}
    return lambda: kind.from_pretrained(side.path, **options), getattr(config, "vocab_size", 0)


def _keras_hub(side: Side) -> tuple[Any, int]:
    if not installed("sentencepiece"):  # it imports it for tokenizers, which no backbone needs
        stub: Any = ModuleType("sentencepiece")
        stub.SentencePieceProcessor = None
        sys.modules["sentencepiece"] = stub
    models = _imported("keras_hub").models
    return lambda: models.Backbone.from_preset(side.path, **side.settings), 0
