"""Estimates the memory and traffic of a training step on several devices."""
