"""The types that the reference's signatures name."""

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["Array", "Gradients", "Keep", "Mask", "Tree", "bounds"]

Array = np.ndarray  # its name ends in its axes
Mask = np.ndarray | None  # boolean; None hides nothing
Tree = Mapping[str, Any]  # arrays, nested by the parts of the canonical names
Keep = Tree | None  # keep masks, nested by the parts of their sites' names; None evaluates
Gradients = dict[str, Any]  # by the names of the arguments; of parameters a tree


def bounds(x: Array) -> tuple[int, int] | tuple[None, None]:
    """The lowest and the highest of integers; None without any, and of other numbers."""
    return (int(x.min()), int(x.max())) if x.size and x.dtype.kind in "iu" else (None, None)
