"""Ours beside every peer, in one run: `rosettaformer bench`."""
