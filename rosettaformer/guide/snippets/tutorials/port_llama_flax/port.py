# region start
import llama
from flax import nnx

from rosettaformer.ports import CLASSIC, NotCovered

framework = "jax"
dtypes = ("float64", "float32")

# Llama 3's choices.
config = CLASSIC | {
    "encoder_layers": 0, "norm": "rms", "norm_offset": False, "norm_one_plus_scale": False,
    "norm_cast_before_scale": True, "norm_placement": "pre", "final_norm": True,
    "gated_feed_forward": True, "activation": "silu", "feed_forward_bias": False,
    "positions": "rotary", "rotary_layout": "halves", "rotary_fraction": 1.0,
    "rotary_pattern": (True,), "layer_pattern": ("global",), "query_key_norm": "none",
    "score_scale": None, "score_cap": None, "query_key_value_bias": False,
    "attention_output_bias": False, "share_embeddings": False, "scale_embedding": False,
    "embedding_norm": False, "tie_logits": False, "output_bias": False, "logit_scale": 1.0,
    "logit_cap": None, "padding_id": None, "position_start": "first_token",
}

components, weights, call = {}, {}, {}

components["rms_norm"] = lambda c, dtype: llama.Norm(c, dtype)
weights["rms_norm"] = [("scale", "scale", "d")]
call["rms_norm"] = {"x": "x_btd"}

components["feed_forward"] = lambda c, dtype: llama.FeedForward(c, dtype, nnx.Rngs(0))
weights["feed_forward"] = [
    ("gate.kernel", "gate_proj.kernel", "d f"),
    ("hidden.kernel", "up_proj.kernel", "d f"),
    ("output.kernel", "down_proj.kernel", "f d"),
]
call["feed_forward"] = {"x": "x_btd"}


# region rotation
def covered(c):
    if c.rotary_scaling.kind not in ("none", "llama3"):
        raise NotCovered(f"Llama has no {c.rotary_scaling.kind} RoPE scaling")
    return c


def rotation(c, dtype):
    return lambda x, position: llama.rotate(x, position, covered(c))


components["rotary_embedding"] = rotation
call["rotary_embedding"] = {"x": "x_bthk", "position": "position_bt"}

# region attention
components["self_attention"] = lambda c, dtype: llama.Attention(covered(c), dtype, nnx.Rngs(0))
weights["multi_head_attention"] = [
    ("query.kernel", "q_proj.kernel", "d h k"),
    ("key.kernel", "k_proj.kernel", "d g k"),
    ("value.kernel", "v_proj.kernel", "d g e"),
    ("output.kernel", "o_proj.kernel", "h e d"),
]
call["self_attention"] = {
    "x": "x_btd",
    "mask": "mask_bhts",
    "causal": "causal",
    "position": "position_bt",
}

# region layer
components["decoder_layer"] = lambda c, dtype: llama.Layer(covered(c), dtype, nnx.Rngs(0))
weights["decoder_layer"] = [
    ("self_attention_norm", "input_layernorm"),
    ("self_attention", "self_attn"),
    ("feed_forward_norm", "post_attention_layernorm"),
    ("feed_forward", "mlp"),
]
call["decoder_layer"] = {"x": "x_btd", "mask": "self_mask_bhts", "position": "position_bt"}

components["decoder"] = lambda c, dtype: llama.Stack(covered(c), dtype, nnx.Rngs(0))
weights["decoder"] = [("final_norm", "norm")]
call["decoder"] = call["decoder_layer"]

# region model
components["transformer"] = lambda c, dtype: llama.Llama(covered(c), dtype, nnx.Rngs(0))
weights["transformer"] = [
    ("target_embedding.table", "embed_tokens.embedding", "v d"),
    ("decoder", "stack"),
    ("logits.kernel", "lm_head.kernel", "d v"),
]
call["transformer"] = {"ids": "target", "real": "target_mask_bt"}

# region decode
components["decode_in_steps"] = lambda c, dtype: components["transformer"](c, dtype).decode_in_steps
call["decode_in_steps"] = {"ids": "target", "real": "target_mask_bt", "splits": "splits"}

# region generation
from functools import partial

import jax.numpy as jnp


def greedy_search(model, ids, real, strategy):
    end, steps = strategy["end_id"], strategy["max_new_tokens"]
    token, log_p = llama.generate(model, ids, end, steps, real)
    left = ((0, 0), (0, steps - token.shape[1]))  # it stops when all rows ended
    return {"token_bn": jnp.pad(token, left, constant_values=end), "log_p_bn": jnp.pad(log_p, left)}


components["greedy_search"] = lambda c, dtype: partial(
    greedy_search, components["transformer"](c, dtype)
)
call["greedy_search"] = {"ids": "prefix", "real": "prefix_mask_bp", "strategy": "strategy"}
