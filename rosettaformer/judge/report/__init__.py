"""The reports of a run."""
