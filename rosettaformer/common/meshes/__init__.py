"""Runs a command on the devices of a mesh: starts its processes, and makes them fail together."""
