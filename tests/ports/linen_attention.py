"""Flax Linen's attention and norm: flax.linen.MultiHeadDotProductAttention and flax.linen.LayerNorm."""

import jax
from flax import linen as nn
from flax.traverse_util import unflatten_dict

from rosettaformer.conformance.ports.port import NotCovered

jax.config.update("jax_enable_x64", True)

dtypes = ("float64", "float32")
# Linen gives keys and values the same size and has no grouped heads
config = {"heads": 3, "key_value_heads": 3, "key_size": 5, "value_size": 5}


def multi_head_attention(case):
    if case.inputs.get("keep_bhts") is not None:
        raise NotCovered("Linen's attention takes no keep masks")
    query, memory, mask = case.inputs["query_btd"], case.inputs["memory_bsd"], case.inputs.get("mask_bhts")
    if case.inputs.get("causal"):
        if query.shape[1] != memory.shape[1]:
            raise NotCovered("Linen's causal mask is square; fewer queries than keys need its cache")
        mask = nn.combine_masks(mask, nn.make_causal_mask(query[:, :, 0]), dtype=bool)
    params = unflatten_dict(case.parameters, sep=".")
    params["out"] = params.pop("output")
    layer = nn.MultiHeadDotProductAttention(
        num_heads=case.config.heads,
        qkv_features=case.config.heads * case.config.key_size,
        use_bias=case.config.attention_bias,
        deterministic=True,
    )
    output, state = layer.apply({"params": params}, query, memory, mask=mask, sow_weights=True, mutable=["intermediates"])
    if case.inputs.get("return_weights"):
        return jax.device_get((output, state["intermediates"]["attention_weights"][0]))
    return jax.device_get(output)


def layer_norm(case):
    params = {"scale": case.parameters["scale"], "bias": case.parameters["offset"]}
    layer = nn.LayerNorm(epsilon=case.config.epsilon, use_fast_variance=False)
    return jax.device_get(layer.apply({"params": params}, case.inputs["x_btd"]))
