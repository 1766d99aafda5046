"""What the answers of both sides say: rows, the first divergence, and their text."""
