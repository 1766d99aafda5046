"""What is wrong with the outputs of a port on a mesh: the fault of the catalogue that gives them, or what they show."""

from .facts import Reply
from .search import Said, fingerprint, said

__all__ = ["Reply", "Said", "fingerprint", "said"]
