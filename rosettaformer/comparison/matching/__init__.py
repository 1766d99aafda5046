"""Matches layers, variables and axes of the two sides."""
