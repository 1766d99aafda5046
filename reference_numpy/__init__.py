"""The reference: the Transformer in plain NumPy, which defines the math of every component.

Each family of components has one module, such as `attention`.

The name of an array ends in its axes: b batch, t query or target position, s key or source
position, d model width, h query heads, g key/value heads, k query/key head size, e value head size,
f feed-forward width, v vocabulary, a segments, c classes, p positions, n new tokens, w beams.
`f_vjp` is the backward pass of `f` (vector-Jacobian product): given `cotangent`, the gradient of
the loss with respect to the output of `f`, it returns a dict of the gradients with respect to the
arguments of `f`. `keep` holds dropout masks, nested by module name; None disables dropout, as in
evaluation. Bracketed words in capitals, such as (RESIDUAL), refer to docs/decisions.md.
"""

from .config import TransformerConfig
from .presets import preset

__all__ = ["TransformerConfig", "preset"]
