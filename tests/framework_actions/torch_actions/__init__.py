"""Actions of users of PyTorch, a file for each kind."""

from . import saving, parts, training, libraries, transforms, programs, onnx_graphs, parallel  # noqa: F401, I001 - the order of the table
from .common import ACTIONS

__all__ = ["ACTIONS"]
