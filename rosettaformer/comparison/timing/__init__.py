"""Timing rows in their own process: time, memory and the environment of a measurement."""
