"""Compares any two models on the same weights and inputs, of any architecture.

A side is a process that builds a model, names its layers and variables, and runs it in float32 and
in float64. Differences are in units of the sides' own rounding noise, |float32 - float64|.
"""
