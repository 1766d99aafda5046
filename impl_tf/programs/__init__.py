"""What calls the pages for speed.

compiled: one graph of a layer or function. unpadding: a model that leaves out padding. fused: a
copy of a model whose projections of one input are one product. static_cache: a cache of a fixed
length. search: a whole search as one graph.
"""

__all__: list[str] = []
