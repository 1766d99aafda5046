"""Seed-OSS (ByteDance Seed 2025): SeedOssModel, SeedOssForCausalLM and classes with other heads. Queries, keys and values have biases."""

from . import decoder, rotary
from .family import Entry, head_sizes

FAMILY = decoder.family(
    "Seed-OSS", "seed_oss", "SeedOss",
    entries=decoder.entries(
        Entry("attention_bias", True, ("query_key_value_bias",)),
        Entry("attention_out_bias", False, ("attention_output_bias",)),
        decoder.MLP_BIAS,
        Entry("residual_dropout", 0.1, ("dropout_rate",), note=decoder.NOT_EMBEDDED),
        vocab_size=155136, hidden_size=4096, num_hidden_layers=64, num_attention_heads=80, num_key_value_heads=8, intermediate_size=27648,
        attention_dropout=0.1,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": 128}, divides=False),
        rotary.flat(10000.0, 524288),
    ),
    prefixes=("transformer.",),  # of SeedOssForQuestionAnswering
    table=decoder.table(*decoder.NORMS, *decoder.attention(), *decoder.feed_forward(biases=True)),
)  # fmt: skip
