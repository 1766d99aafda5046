"""What calls the pages: whole programs.

compiled: a module or function as one program for each set of shapes. unpadding: a model's call
without its padding. fused: a model as the steps of decoding run it. search: what a search is given,
and its program. step: a step of training.
"""

__all__ = []
