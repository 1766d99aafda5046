"""Whole programs that call the pages.

compiled: a layer or function as one graph. unpadding: a model without padding. fused: a copy of a
model with fused projections. static_cache: a cache of fixed length. search: a whole search as one
graph.
"""

__all__: list[str] = []
