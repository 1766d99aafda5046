"""Whole programs that call the pages.

compiled: a module or function as one program per set of shapes. unpadding: a model without padding.
fused: a model with fused projections, for decoding. search: the inputs and programs of searches.
reading: their loop. step: a training step.
"""

__all__ = []
