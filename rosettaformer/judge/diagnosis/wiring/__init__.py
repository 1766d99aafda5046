"""Wirings: how the parts of a model could be put together otherwise."""

from .wirings import Wiring, wirings

__all__ = ["Wiring", "wirings"]
