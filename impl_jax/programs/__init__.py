"""What calls the pages: whole programs.

compiled: one program of a module or function for each set of shapes. unpadding: a model's call without its padding.
fused: a model as the steps of decoding run it. search: what a search is given, and its program. step: a step of training.
"""

__all__ = []
