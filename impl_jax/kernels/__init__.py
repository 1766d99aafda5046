"""What pages call in one line for speed.

attention: queries in chunks. projection: several projections as one product. int8: such a product
of int8 numbers. unpadding: real tokens side by side, and the rows that attention needs.
"""

__all__ = []
