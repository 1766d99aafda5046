"""Flax Linen's attention and norm: flax.linen.MultiHeadDotProductAttention and flax.linen.LayerNorm."""

from typing import Any

from flax import linen as nn

from rosettaformer.ports import CLASSIC, NotCovered


class Attention(nn.Module):
    """With the weights beside the output, which Linen stores in a collection of its own."""

    config: Any
    dtype: Any

    @nn.compact
    def __call__(self, query, memory, mask, causal, return_weights):
        if causal:
            if query.shape[1] != memory.shape[1]:
                raise NotCovered("Linen's causal mask is square; fewer queries than keys need its cache")
            mask = nn.combine_masks(mask, nn.make_causal_mask(query[:, :, 0]), dtype=bool)
        found = []

        def attend(query, key, value, mask):
            found.append(nn.dot_product_attention_weights(query, key, mask=mask))
            return nn.dot_product_attention(query, key, value, mask=mask)

        layer = nn.MultiHeadDotProductAttention(
            num_heads=self.config.heads,
            qkv_features=self.config.heads * self.config.key_size,
            use_bias=self.config.attention_bias,
            deterministic=True,
            param_dtype=self.dtype,
            attention_fn=attend,
            name="attention",
        )
        output = layer(query, memory, mask=mask)
        return (output, found[0]) if return_weights else output


framework = "jax"
modes = ("compiled", "eager")
dtypes = ("float64", "float32")

components = {
    "multi_head_attention": Attention,
    "layer_norm": lambda config, dtype: nn.LayerNorm(epsilon=config.epsilon, use_fast_variance=False, param_dtype=dtype),
}
call = {
    "multi_head_attention": {
        "query": "query_btd",
        "memory": "memory_bsd",
        "mask": "mask_bhts",
        "causal": "causal",
        "return_weights": "return_weights",
    },
    "layer_norm": {"x": "x_btd"},
}
weights = {
    "multi_head_attention": (
        ("query.kernel", "attention.query.kernel", "d h k"),
        ("query.bias", "attention.query.bias", "h k"),
        ("key.kernel", "attention.key.kernel", "d g k"),
        ("key.bias", "attention.key.bias", "g k"),
        ("value.kernel", "attention.value.kernel", "d g e"),
        ("value.bias", "attention.value.bias", "g e"),
        ("output.kernel", "attention.out.kernel", "h e d"),
        ("output.bias", "attention.out.bias", "d"),
    ),
    "layer_norm": (("scale", "scale", "d"), ("offset", "bias", "d")),
}
# Linen gives keys and values the same size and has no grouped heads
config = CLASSIC | {"heads": 3, "key_value_heads": 3, "key_size": 5, "value_size": 5}
