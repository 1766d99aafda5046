"""Kernels: attention, projections and the gathers of an unpadded run. The pages call them in one
line each.
"""

__all__: list[str] = []
