"""Uses a checkpoint on any backend: continues texts, classifies them, and shows what a model computes on the way."""
