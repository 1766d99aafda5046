"""Skips the folder if JAX is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("jax") and find_spec("flax") else ["test_*.py"]
