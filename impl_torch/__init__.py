"""The port to PyTorch: `nn.Module`s and functions, file by file as in `reference_numpy`.

`transformer.Transformer(config)`, `attention.MultiHeadAttention(config)` and so on hold the model;
`kernels` and `programs` make it fast, such as `programs.compiled.compiled(module)`, which runs a
module as a single graph.

A name ends in its axes, see `reference_numpy`. Words in capitals in brackets, such as (RESIDUAL),
are decisions of docs/decisions.md. keep: dropout masks given by the caller, nested by module name;
they are applied in every mode, and sites without one draw their own in training.
"""

from reference_numpy import TransformerConfig, preset

__all__ = ["TransformerConfig", "preset"]
