"""Finds where a model first diverges from the reference, in the forward and the backward pass."""

from .component_tree import Divergence, Failure, Row
from .forward import divergence
from .gradients import Backward, backward

__all__ = ["Backward", "Divergence", "Failure", "Row", "backward", "divergence"]
