"""Rows whose calls are timed by the process that holds them: time, memory, and the environment in which they were measured."""
