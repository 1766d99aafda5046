"""The reference: plain NumPy that defines the math of every component of the Transformer.

One module a component family; `attention.multi_head_attention`, `transformer.transformer` and so on.
"""

from .config import TransformerConfig, preset

__all__ = ["TransformerConfig", "preset"]
