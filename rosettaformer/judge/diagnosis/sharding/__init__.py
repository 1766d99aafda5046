"""What is wrong with the outputs of a port on a mesh: the fault of the catalogue that gives them, or what they show."""

from .facts import Reply
from .fault_search import Said, said

__all__ = ["Reply", "Said", "said"]
