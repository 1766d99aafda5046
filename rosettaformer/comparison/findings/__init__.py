"""What the answers of two sides say: rows, the first divergence, and what explains it."""
