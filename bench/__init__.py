"""Times ours beside every peer in one run: `python -m bench`."""
