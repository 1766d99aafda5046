"""Whole forward passes and training steps, ours beside the stock layers of each framework: `python -m benchmarks`."""
