"""Types used in the signatures of the reference."""

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["Array", "Gradients", "Keep", "Mask", "Tree", "bounds"]

Array = np.ndarray  # its name ends in its axes
Mask = np.ndarray | None  # boolean; None hides nothing
Tree = Mapping[str, Any]  # arrays, nested by the parts of their canonical names
Keep = Tree | None  # keep masks, nested by the parts of their site names; None in evaluation
Gradients = dict[str, Any]  # by argument name; for parameters, a tree


def bounds(x: Array) -> tuple[int, int] | tuple[None, None]:
    """Returns the smallest and largest of integers; None if x is empty or not integer."""
    return (int(x.min()), int(x.max())) if x.size and x.dtype.kind in "iu" else (None, None)
