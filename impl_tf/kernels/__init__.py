"""What the pages call for speed, each in one line.

attention: contractions by head, chunks of queries. unpadding: real tokens side by side. projection,
int8: several projections as one product, and in int8.
"""

__all__: list[str] = []
