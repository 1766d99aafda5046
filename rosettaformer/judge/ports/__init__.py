"""Finds a port, runs its process, and adapts the frameworks."""
