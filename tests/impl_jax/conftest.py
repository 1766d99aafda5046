"""Without JAX there is nothing to test."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("jax") and find_spec("flax") else ["test_*.py"]
