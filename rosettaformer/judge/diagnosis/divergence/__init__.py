"""Where a model first diverges from the reference, forward and backward."""

from .component_tree import Divergence, Failure, Row
from .forward import divergence
from .gradients import Backward, backward

__all__ = ["Backward", "Divergence", "Failure", "Row", "backward", "divergence"]
