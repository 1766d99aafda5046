"""Times ours beside every peer in one run: `rosettaformer bench`."""
