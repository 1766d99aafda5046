"""Runs the two sides in processes: opening models, inputs and weights, requests, and timing."""
