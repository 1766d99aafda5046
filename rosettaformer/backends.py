"""The four implementations by name, whose parts are imported when they are asked for."""

import contextlib
import importlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from .conformance.ports.port import PORTS, how_to_install, unavailable
from .extras import MissingBackend

_GREETING = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog|[IE]\d{4} .*(oneDNN|cpu_feature_guard)|INFO: Created TensorFlow Lite|\s*$"
)
BACKENDS = {name: module.partition(".")[0] for name, (module, *_) in PORTS.items()} | {"numpy": "reference_numpy"}


def imported(backend: str, module: str) -> ModuleType:
    """The module, which needs the backend's framework. Raises MissingBackend where that is missing, with the line that installs it, or
    broken.
    """
    _hush()
    try:
        with without_greeting() if backend == "tf" and "tensorflow" not in sys.modules else contextlib.nullcontext():
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if backend not in PORTS or (error.name or "").startswith(("impl_", "reference_numpy", "rosettaformer")):
            raise
        raise MissingBackend(f"the backend {backend} needs {error.name}: {how_to_install(backend)}") from None
    except Exception as error:
        if reason := unavailable(error):
            raise MissingBackend(f"the backend {backend} cannot be used: {reason}") from None
        raise


def transformer(backend: str, config: TransformerConfig, parameters: Mapping[str, np.ndarray], device: Any = None) -> Any:
    """The backend's Transformer with these canonical parameters, in their dtype. device: of torch; the others have theirs from a context.

    Raises MissingBackend.
    """
    dtype = next(iter(parameters.values())).dtype
    build = imported(backend, f"{BACKENDS[backend]}.transformer").Transformer
    if backend == "torch":
        module = build(config).to(device, getattr(imported(backend, "torch"), str(dtype)))
    elif backend == "jax":
        module = build(config, param_dtype=dtype, rngs=imported(backend, "flax.nnx").Rngs(0))
    else:
        module = build(config, dtype=str(dtype))
    imported(backend, f"{BACKENDS[backend]}.weights").load(module, parameters, config)
    return module


def _hush() -> None:
    """What TensorFlow says of itself on standard error, and that every shape of a batch is a graph of its own, is not news."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


@contextlib.contextmanager
def without_greeting() -> Iterator[None]:
    """Keeps from standard error what TensorFlow's C++ says when it is imported, before it heeds any setting, and LiteRT's when a model
    first runs; the rest comes after it.
    """
    _hush()
    try:
        before = os.dup(2)
    except OSError:  # there is none
        yield
        return
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            kept.seek(0)
            os.write(2, b"".join(line for line in kept if not _GREETING.match(line)))
