"""Actions of users of JAX and Flax, a file for each part."""

from . import jax_calls, jax_files, jax_meshes, jax_parts, jax_training
from .jax_models import ACTIONS

__all__ = ["ACTIONS", "jax_calls", "jax_files", "jax_meshes", "jax_parts", "jax_training"]
