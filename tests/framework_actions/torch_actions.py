"""Actions of users of PyTorch."""

from . import Actions

ACTIONS = Actions("torch")
