"""The Transformer in JAX with Flax NNX: the twin of `reference_numpy`, module by module."""

from reference_numpy import TransformerConfig, preset

__all__ = ["TransformerConfig", "preset"]
