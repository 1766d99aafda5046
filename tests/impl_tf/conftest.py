"""Skips the folder if TensorFlow is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("tensorflow") else ["test_*.py"]
