"""Benchmarks our implementations against every peer in one run: `python -m bench`."""
