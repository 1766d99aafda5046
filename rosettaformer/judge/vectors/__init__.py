"""Golden vectors: exports and verifies the suite's cases and expected outputs as files."""
