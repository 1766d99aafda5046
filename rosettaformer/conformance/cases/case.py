"""An old import path of port files; `rosettaformer.ports` is the one to use."""

from ..case import Case

__all__ = ["Case"]
