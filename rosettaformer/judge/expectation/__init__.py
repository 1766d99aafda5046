"""Expectations: the reference's outputs, their tolerance, and traces of its calls."""
