"""Actions of users of JAX and Flax."""

from . import Actions

ACTIONS = Actions("jax")
