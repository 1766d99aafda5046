"""Uses a checkpoint on any backend: generates text, classifies it, and shows attention."""
