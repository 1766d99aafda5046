"""Fast building blocks that pages call in one line.

attention: chunked or fused attention. projection, int8: several projections as one product, in int8
too. unpadding: flat tokens without padding, and rows for attention.
"""

__all__: list[str] = []
