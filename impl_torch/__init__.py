"""The port to PyTorch: `nn.Module`s and functions, file by file as in `reference_numpy`.

`transformer.Transformer(config)`, `attention.MultiHeadAttention(config)` and so on hold the model;
`kernels` and `programs` make it fast, such as `programs.compiled.compiled(module)`, which runs a
module as a single graph.
"""

from reference_numpy import TransformerConfig, preset

__all__ = ["TransformerConfig", "preset"]
