"""The four implementations by name, whose parts are imported when they are asked for."""

import importlib
import importlib.util
import logging
import os
from types import ModuleType

from .conformance.ports.port import PORTS, MissingBackend, unavailable
from .extras import install

__all__ = ["BACKENDS", "MissingBackend", "imported", "require"]

BACKENDS = {"torch": "impl_torch", "tf": "impl_tf", "jax": "impl_jax", "numpy": "reference_numpy"}


def imported(backend: str, module: str) -> ModuleType:
    """The module, which needs the backend's framework. Raises MissingBackend where that is missing, with the line that installs it, or
    broken.
    """
    # What TensorFlow says of itself on standard error, and that every shape of a batch is a graph of its own, is not news.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if backend not in PORTS or (error.name or "").startswith(("impl_", "reference_numpy", "rosettaformer")):
            raise
        raise MissingBackend(f"the backend {backend} needs {error.name}: {PORTS[backend][2]}") from None
    except Exception as error:
        if reason := unavailable(error):
            raise MissingBackend(f"the backend {backend} cannot be used: {reason}") from None
        raise


def require(what: str, extra: str, *packages: str) -> None:
    """Raises MissingBackend, before any work, where one of the packages is missing. what: what needs them; extra: what installs them."""
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise MissingBackend(f"{what} needs {', '.join(missing)}: {install(extra)}")
