"""Using a checkpoint: continuing texts, classifying them, and what a model computes on the way, on any backend."""
