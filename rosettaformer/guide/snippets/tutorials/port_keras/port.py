# region start
import gpt2
from keras.layers import LayerNormalization

from rosettaformer.ports import CLASSIC

framework = "tf"
dtypes = ("float64", "float32")

# GPT-2's choices.
choices = CLASSIC | {
    "encoder_layers": 0, "norm_placement": "pre", "final_norm": True, "activation": "gelu_tanh",
    "positions": "learned", "position_offset": 0, "position_start": "first_token",
    "scale_embedding": False, "tie_logits": True, "output_bias": False, "attention_bias": True,
    "share_embeddings": False, "embedding_norm": False, "segments": 0, "padding_id": None,
}
# The sizes of the cases: the heads divide the width.
config = choices | {
    "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4,
    "max_positions": 11,
}

components, weights, call = {}, {}, {}

components["layer_norm"] = lambda c, dtype: LayerNormalization(epsilon=c.epsilon, dtype=dtype.name)
weights["layer_norm"] = [("scale", "gamma", "d"), ("offset", "beta", "d")]
call["layer_norm"] = {"inputs": "x_btd"}

components["feed_forward"] = lambda c, dtype: gpt2.FeedForward(
    c.model_width, c.feed_forward_width, dtype=dtype.name
)
weights["feed_forward"] = [
    ("hidden.kernel", "c_fc.kernel", "d f"),
    ("hidden.bias", "c_fc.bias", "f"),
    ("output.kernel", "c_proj.kernel", "f d"),
    ("output.bias", "c_proj.bias", "d"),
]
call["feed_forward"] = {"x": "x_btd"}


# region dot_product
components["scaled_dot_product_attention"] = lambda c, dtype: gpt2.attention
call["scaled_dot_product_attention"] = {
    "query": "query_bthk",
    "key": "key_bsgk",
    "value": "value_bsge",
    "mask": "mask_bhts",
    "causal": "causal",
}

# region multi_head
components["multi_head_attention"] = lambda c, dtype: gpt2.Attention(
    c.model_width, c.heads, dtype=dtype.name
)
weights["multi_head_attention"] = [
    ("query.kernel", "query.kernel", "(h k) d"),
    ("query.bias", "query.bias", "(h k)"),
    ("key.kernel", "key.kernel", "(g k) d"),
    ("key.bias", "key.bias", "(g k)"),
    ("value.kernel", "value.kernel", "(g e) d"),
    ("value.bias", "value.bias", "(g e)"),
    ("output.kernel", "out.kernel", "d (h e)"),
    ("output.bias", "out.bias", "d"),
]
call["multi_head_attention"] = {
    "x": "query_btd",
    "memory": "memory_bsd",
    "mask": "mask_bhts",
    "causal": "causal",
}


# region stack
def sizes(c):
    return c.model_width, c.heads, c.feed_forward_width, c.epsilon


components["decoder_layer"] = lambda c, dtype: gpt2.Block(*sizes(c), dtype=dtype.name)
weights["decoder_layer"] = [
    ("self_attention", "attn"),
    ("self_attention_norm", "ln_1"),
    ("feed_forward", "mlp"),
    ("feed_forward_norm", "ln_2"),
]
call["decoder_layer"] = {"x": "x_btd", "mask": "self_mask_bhts"}

components["decoder"] = lambda c, dtype: gpt2.Stack(c.decoder_layers, *sizes(c), dtype=dtype.name)
weights["decoder"] = [("layers", "h"), ("final_norm", "ln_f")]
call["decoder"] = {"x": "x_btd", "mask": "self_mask_bhts"}

# region model
components["transformer"] = lambda c, dtype: gpt2.GPT2(
    c.target_vocabulary, c.max_positions, c.decoder_layers, *sizes(c), dtype=dtype.name
)
weights["transformer"] = [
    ("target_embedding.table", "wte.embeddings", "v d"),
    ("target_position_embedding.table", "wpe.embeddings", "p d"),
    ("decoder", "stack"),
]
call["transformer"] = {"ids": "target", "real": "target_mask_bt"}
