"""What is there for speed; the plain files call it in one line.

attention: queries in chunks. projection, fused: several projections as one product. compiled: one program of a module or function.
packing: nothing is multiplied for padding.
cache: keys and values of a fixed length, written in place. request, search, beams: a whole search as one program.
"""

__all__ = []
