"""The reference on a mesh: each device is a thread with its rows, heads and features."""

from .devices import Device
from .operations import OPERATIONS, Operations
from .run import answer

__all__ = ["OPERATIONS", "Device", "Operations", "answer"]
