"""What pages call in one line for speed.

attention: queries in chunks. projection: several projections as one product. int8: products of int8.
unpadding: the real tokens of all rows side by side, and the rows that attention needs.
"""

__all__ = []
