"""The judge of Transformer ports: checks any of them against the NumPy reference."""
