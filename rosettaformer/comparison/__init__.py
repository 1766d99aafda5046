"""Compares any two models on the same weights and inputs, which the reference need not know.

A side is a process that builds a model, names its layers and variables, and runs it in float32 and in float64. What the two sides give is
compared in units of their own rounding noise, |float32 - float64|.
"""
