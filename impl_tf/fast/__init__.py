"""What is there for speed; the plain files call it, one line each.

attention: chunks of queries. packing: only real tokens. projection, fused: several projections as one product. compiled: one graph of a
layer or function. cache: keys and values of a fixed length, written in place. request, search, beams: a whole search as one graph.
"""

__all__: list[str] = []
