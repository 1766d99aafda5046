"""The reference: plain NumPy that defines the math of every component of the Transformer.

One module for each family of components: `attention.multi_head_attention` and so on.
"""

from .config import TransformerConfig, preset

__all__ = ["TransformerConfig", "preset"]
