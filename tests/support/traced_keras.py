"""An encoder of Keras's own layers under other names, with one mistake of choice. Used by the tests of the first divergence."""

from typing import Any

import keras
import tensorflow as tf

from reference_numpy import TransformerConfig


class Block(keras.layers.Layer):
    def __init__(self, config: TransformerConfig, mistake: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.mistake = mistake
        self.attn = keras.layers.MultiHeadAttention(config.heads, config.key_size, config.value_size, dtype=dtype)
        self.ffn = keras.Sequential(
            [keras.layers.Dense(config.feed_forward_width, "relu", dtype=dtype), keras.layers.Dense(config.model_width, dtype=dtype)]
        )
        self.norm1 = keras.layers.LayerNormalization(epsilon=config.epsilon, dtype=dtype)
        self.norm2 = keras.layers.LayerNormalization(epsilon=1e-3 if mistake == "epsilon" else config.epsilon, dtype=dtype)

    def call(self, x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        y = self.norm1(x + self.attn(x, x, attention_mask=mask))
        inside = tf.stop_gradient(y) if self.mistake == "detached" else y
        return self.norm2((x if self.mistake == "residual" else y) + self.ffn(inside))


class Encoder(keras.layers.Layer):
    def __init__(self, config: TransformerConfig, mistake: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layers = [Block(config, mistake if i == 1 else "", dtype=self.dtype_policy) for i in range(config.encoder_layers)]
        self.norm = keras.layers.LayerNormalization(epsilon=config.epsilon, dtype=self.dtype_policy)

    @tf.function
    def call(self, x_bsd: tf.Tensor, mask_bhts: tf.Tensor) -> tf.Tensor:
        for layer in self.layers:
            x_bsd = layer(x_bsd, mask_bhts[:, 0])
        return self.norm(x_bsd)


WEIGHTS = (
    *((f"self_attention.{name}.kernel", f"attn._{name}_dense.kernel", f"d {axes}") for name, axes in
      (("query", "h k"), ("key", "g k"), ("value", "g e"))),
    *((f"self_attention.{name}.bias", f"attn._{name}_dense.bias", axes) for name, axes in
      (("query", "h k"), ("key", "g k"), ("value", "g e"))),
    ("self_attention.output.kernel", "attn._output_dense.kernel", "h e d"),
    ("self_attention.output.bias", "attn._output_dense.bias", "d"),
    ("feed_forward.hidden.kernel", "ffn.layers.0.kernel", "d f"),
    ("feed_forward.hidden.bias", "ffn.layers.0.bias", "f"),
    ("feed_forward.output.kernel", "ffn.layers.1.kernel", "f d"),
    ("feed_forward.output.bias", "ffn.layers.1.bias", "d"),
    *((f"{name}.{kind}", f"{native}.{variable}", "d") for kind, variable in (("scale", "gamma"), ("offset", "beta")) for name, native in
      (("self_attention_norm", "norm1"), ("feed_forward_norm", "norm2"), ("final_norm", "norm"))),
)  # fmt: skip
PATHS = (
    ("self_attention", "attn"),
    ("feed_forward", "ffn"),
    ("self_attention_norm", "norm1"),
    ("feed_forward_norm", "norm2"),
    ("final_norm", "norm"),
)


def port(mistake: str) -> dict[str, Any]:
    """What the file of a port with that mistake contains; "" is the model as it should be."""
    components = {"encoder": lambda config, dtype: Encoder(config, mistake, dtype=dtype.name)}
    return {"framework": "tf", "components": components, "weights": WEIGHTS, "module_paths": PATHS}
