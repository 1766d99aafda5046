"""Wirings: how the parts of a model could be put together otherwise."""

from .wiring import Wiring
from .wirings import wirings

__all__ = ["Wiring", "wirings"]
