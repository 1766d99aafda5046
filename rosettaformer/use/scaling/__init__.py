"""A training step on several devices, on paper: memory of each, and bytes that they exchange."""
