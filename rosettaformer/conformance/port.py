"""An old import path of port files; `rosettaformer.ports` is the one to use."""

from .ports.port import NotCovered, Unsupported

__all__ = ["NotCovered", "Unsupported"]
