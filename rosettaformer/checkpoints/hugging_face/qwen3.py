"""Qwen 3 (Yang et al. 2025): Qwen3Model, Qwen3ForCausalLM and classes with other heads. Queries and keys are normed over each head."""

from . import decoder, rotary, windows
from .family import head_sizes

FAMILY = decoder.family(
    "Qwen 3", "qwen3", "Qwen3",
    fixed={"query_key_norm": "head"},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS,
        vocab_size=151936, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, intermediate_size=22016,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": 128}, divides=False),
        rotary.flat(10000.0, 32768),
        windows.QWEN,
    ),
    prefixes=("transformer.",),  # of Qwen3ForQuestionAnswering
    table=decoder.table(*decoder.NORMS, *decoder.attention(), *decoder.HEAD_NORMS, *decoder.feed_forward()),
)  # fmt: skip
