"""Decoding as functions of NumPy: what steps, choices and searches are asked for."""

from rosettaformer.judge.expectation.components import answer

decode_in_steps = greedy_search = sample = beam_search = penalise = truncate = draw = answer
