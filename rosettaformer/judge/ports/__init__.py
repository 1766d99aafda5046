"""Loads ports, runs their processes, and adapts the frameworks."""
