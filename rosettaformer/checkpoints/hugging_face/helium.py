"""Helium 1 (Kyutai 2025): HeliumModel, HeliumForCausalLM and classes with other heads.

Neighbouring features rotate together.
"""

from . import decoder, rotary
from .family import Entry, head_sizes

FAMILY = decoder.family(
    "Helium", "helium", "Helium",
    fixed={"rotary_layout": "interleaved", "norm_cast_before_scale": False},
    entries=decoder.entries(
        Entry("attention_bias", False, ("query_key_value_bias",)), decoder.MLP_BIAS,
        vocab_size=48000, hidden_size=2560, num_hidden_layers=24, num_attention_heads=20, num_key_value_heads=20, intermediate_size=7040,
        rms_norm_eps=1e-8,
    ),
    joints=(head_sizes("hidden_size", "num_attention_heads", {"head_dim": 128}), rotary.flat(100000.0, 4096)),
    without=("ForQuestionAnswering",),
    table=decoder.table(*decoder.NORMS, *decoder.attention(output=False), *decoder.feed_forward(biases=True)),
)  # fmt: skip
