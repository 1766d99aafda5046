"""An old path of what files of ports import; `rosettaformer.ports` is the one that stays."""

from .ports.port import NotCovered, Unsupported

__all__ = ["NotCovered", "Unsupported"]
