"""The four implementations by name; their modules are imported on demand."""

import contextlib
import importlib
import logging
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig

from .extras import MissingBackend, install
from .processes import printable, words

# name -> (module for the judge, required framework module, extra that installs it)
PORTS = {
    "torch": ("impl_torch.port", "torch", "torch"),
    "tf": ("impl_tf.port", "tensorflow", "tf-cpu"),
    "jax": ("impl_jax.port", "jax", "jax"),
}
# package -> the port that needs it
PACKAGES = {needs: port for port, (_, needs, _) in PORTS.items()} | {"keras": "tf", "flax": "jax", "jaxlib": "jax", "optax": "jax"}
OWN = (__package__.partition(".")[0], *(module.partition(".")[0] for module, _, _ in PORTS.values()))
_GREETING = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog|[IE]\d{4} .*(oneDNN|cpu_feature_guard)|INFO: Created TensorFlow Lite|\s*$"
)
BACKENDS = {name: module.partition(".")[0] for name, (module, *_) in PORTS.items()} | {"numpy": "reference_numpy"}


def how_to_install(port: str) -> str:
    """Returns the command that installs the framework of one of `PORTS`."""
    return install(PORTS[port][2]) + ("  (or [tf] on a GPU)" if port == "tf" else "")


def needs_of(*ports: str) -> dict[str, Sequence[str]]:
    """Returns the packages that these ports need, by the extra that installs them."""
    return {PORTS[port][2]: [package for package, of in PACKAGES.items() if of == port] for port in ports if port in PORTS}


def unavailable(error: BaseException) -> str:
    """Returns why a framework is unavailable, or how to install it; empty for other errors."""
    name = getattr(error, "name", None) or "" if isinstance(error, ImportError) else ""
    if isinstance(error, ModuleNotFoundError) and name in PACKAGES:
        return how_to_install(PACKAGES[name])
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    importing = [_package(frame.f_globals.get("__name__")) for frame in frames if frame.f_code.co_name == "<module>"]
    if frames and _package(frames[-1].f_globals.get("__name__")) in OWN:  # the framework lacks a name that is imported here
        importing.append(_package(name))
    broken = next((package for package in importing if package in PACKAGES), "")
    return f"{broken} is installed, but importing it fails: {printable(words(error))}" if broken else ""


def _package(module: Any) -> str:
    return str(module).partition(".")[0]


def imported(backend: str, module: str) -> ModuleType:
    """Imports a module that needs a backend's framework.

    Raises MissingBackend if the framework is broken or missing, with the command that installs it.
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
    """Creates a backend's Transformer with these canonical parameters, in their dtype.

    device: only for torch; the others take theirs from a context. Raises MissingBackend.
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
    """Silences TensorFlow's start-up banner and retracing warnings."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


@contextlib.contextmanager
def without_greeting() -> Iterator[None]:
    """Filters what TensorFlow's C++ code prints on import, and LiteRT's on the first run.

    Other output on standard error appears after the block.
    """
    _hush()
    try:
        before = os.dup(2)
    except OSError:  # standard error is closed
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
