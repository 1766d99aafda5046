"""ERNIE 4.5 without experts (Baidu 2025): Ernie4_5Model and Ernie4_5ForCausalLM. Neighbouring features rotate together."""

from . import decoder, rotary
from .family import Entry, head_sizes

_BIASES = ("query_key_value_bias", "attention_output_bias", "feed_forward_bias")

FAMILY = decoder.family(
    "ERNIE 4.5", "ernie4_5", "Ernie4_5",
    fixed={"rotary_layout": "interleaved", "attention_dropout_rate": 0.0},
    entries=decoder.entries(
        Entry("use_bias", False, _BIASES),
        without=("attention_dropout",),
        vocab_size=103424, hidden_size=1024, num_hidden_layers=18, num_attention_heads=16, num_key_value_heads=2, intermediate_size=3072,
        rms_norm_eps=1e-5, tie_word_embeddings=True,
    ),
    joints=(head_sizes("hidden_size", "num_attention_heads", {"head_dim": 128}, divides=False), rotary.flat(500000.0, 131072)),
    ignored=dict.fromkeys(("attention_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"), "the class drops nothing"),
    classes={"Ernie4_5ForCausalLM": ("language_head",), "Ernie4_5Model": ()},
    table=decoder.table(*decoder.NORMS, *decoder.attention(), *decoder.feed_forward(biases=True)),
)  # fmt: skip
