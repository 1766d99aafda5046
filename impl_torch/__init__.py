"""The port to PyTorch: `nn.Module`s and functions with the file and argument names of
`reference_numpy`.

`transformer.Transformer(config)`, `attention.MultiHeadAttention(config)` and so on define the
model. `kernels` and `programs` make it fast: `programs.compiled.compiled(module)`, for example,
runs a module as a single graph.

The name of an array ends in its axes, and bracketed words in capitals, such as (RESIDUAL), refer to
docs/decisions.md; see `reference_numpy`. `keep` holds dropout masks, nested by module name. They
apply in every mode; in training, dropout sites without a mask draw their own.
"""

from reference_numpy import TransformerConfig, preset

__all__ = ["TransformerConfig", "preset"]
