"""An old path of what files of ports import; `rosettaformer.ports` is the one that stays."""

from ..case import Case

__all__ = ["Case"]
