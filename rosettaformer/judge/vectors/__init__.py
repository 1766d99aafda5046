"""Golden vectors: the cases with the outputs of the reference, as files."""
