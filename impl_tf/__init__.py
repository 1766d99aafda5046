"""The Transformer in TensorFlow: Keras 3 layers on the TensorFlow backend.

One module for each component family, as in `reference_numpy`; `impl_tf.transformer.Transformer` is
the whole model.
"""

from reference_numpy import TransformerConfig, preset

__all__ = ["TransformerConfig", "preset"]
