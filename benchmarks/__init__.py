"""Whole forward passes, ours beside the stock layers of each framework: `python -m benchmarks`."""
