"""The port to PyTorch: `nn.Module`s and functions, file by file as in `reference_numpy`.

`transformer.Transformer(config)`, `attention.MultiHeadAttention(config)` and so on; `compiled.compiled(module)` runs one as a single graph.
"""

from reference_numpy import TransformerConfig, preset

__all__ = ["TransformerConfig", "preset"]
