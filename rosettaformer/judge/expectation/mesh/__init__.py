"""The reference on a mesh: every device is a thread that runs the reference on its rows, heads and features."""

from .devices import Device
from .operations import OPERATIONS, Operations
from .run import answer

__all__ = ["OPERATIONS", "Device", "Operations", "answer"]
