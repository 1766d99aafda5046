"""Compares the outputs of two sides: rows, the first difference and its explanation."""
