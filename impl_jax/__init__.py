"""The port to JAX: Flax NNX modules with the file and argument names of `reference_numpy`.

The name of an array ends in its axes, and bracketed words in capitals, such as (RESIDUAL), refer to
docs/decisions.md; see `reference_numpy`. `keep` holds dropout masks, nested by module name. They
apply in every mode; in training, dropout sites without a mask draw their own.
"""

from reference_numpy import TransformerConfig, preset

__all__ = ["TransformerConfig", "preset"]
