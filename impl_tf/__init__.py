"""The Transformer in TensorFlow: Keras 3 layers on the TensorFlow backend, the twin of
`reference_numpy`, module by module.

A name ends in its axes, see `reference_numpy`. Words in capitals in brackets, such as (RESIDUAL),
are decisions of docs/decisions.md. keep: dropout masks given by the caller, nested by layer name;
they are applied in every mode, and sites without one draw their own in training.
"""

from reference_numpy import TransformerConfig, preset

__all__ = ["TransformerConfig", "preset"]
