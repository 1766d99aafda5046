"""Decoding as functions of NumPy: what steps, choices and searches are asked for."""

from reference_numpy import cache, decoding, sampling
from reference_numpy.parameters import nest


def _of_model(function):
    return lambda case: function(nest(case.parameters), case.config, **case.inputs)


decode_in_steps = _of_model(cache.decode_in_steps)
greedy_search = _of_model(decoding.greedy_search)
sample = _of_model(decoding.sample)
beam_search = _of_model(decoding.beam_search)


def penalise(case):
    return sampling.penalise(**case.inputs)


def truncate(case):
    return sampling.truncate(**case.inputs)


def draw(case):
    return sampling.draw(**case.inputs)
