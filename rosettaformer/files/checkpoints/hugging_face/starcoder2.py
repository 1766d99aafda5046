"""StarCoder2 (Lozhkov et al. 2024): Starcoder2Model, Starcoder2ForCausalLM and others.

Norms have offsets, and the feed-forward has no gate.
"""

from .. import tables
from . import decoder, rotary, windows
from .family import Entry, head_sizes

_BIASES = ("query_key_value_bias", "attention_output_bias", "feed_forward_bias")

FAMILY = decoder.family(
    "StarCoder2", "starcoder2", "Starcoder2",
    fixed={**decoder.LAYER_NORM, "gated_feed_forward": False},
    entries=decoder.entries(
        Entry("use_bias", True, _BIASES),
        Entry("residual_dropout", 0.0, ("dropout_rate",)),
        Entry("embedding_dropout", 0.0, ("dropout_rate",)),
        words=decoder.TANH, epsilon="norm_epsilon",
        vocab_size=49152, hidden_size=3072, num_hidden_layers=30, num_attention_heads=24, num_key_value_heads=2, intermediate_size=12288,
        norm_epsilon=1e-5, tie_word_embeddings=True,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False),
        rotary.flat(10000.0, 4096),
        windows.everywhere(None),
    ),
    ignored=dict.fromkeys(
        ("activation_function", "attention_softmax_in_fp32", "layer_norm_epsilon", "mlp_type", "norm_type",
         "scale_attention_softmax_in_fp32", "scale_attn_weights"),
        "published folders have it, but the class does not read it",
    ),
    without=("ForQuestionAnswering",),
    table=decoder.table(
        *decoder.LAYER_NORMS,
        *decoder.attention(),
        *tables.dense("mlp.c_fc", "feed_forward.hidden", "f d", "f"),
        *tables.dense("mlp.c_proj", "feed_forward.output", "d f", "d"),
        last=decoder.layer_norm("norm", "decoder.final_norm"),
    ),
)  # fmt: skip
