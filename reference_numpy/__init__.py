"""The reference: plain NumPy that defines the math of every component of the Transformer.

One module for each family of components: `attention.multi_head_attention` and so on.

A name ends in its axes: b row of the batch, t query or target position, s key or source position,
d model width, h query head, g key/value head, k size of a query or key head, e size of a value
head, f feed-forward width, v vocabulary, a segment, c class, p position, n new token, w beam.
`f_vjp` is the backward pass of f (vector-Jacobian product): given cotangent, the gradient of the
loss with respect to the output of f, it returns the gradients with respect to f's arguments under
their names. keep: dropout masks by site, nested by module name; None: no dropout, as in evaluation.
Words in capitals in brackets, such as (RESIDUAL), are decisions of docs/decisions.md.
"""

from .config import TransformerConfig
from .presets import preset

__all__ = ["TransformerConfig", "preset"]
