"""Qwen 2 and 2.5 (Yang et al. 2024): Qwen2Model, Qwen2ForCausalLM and classes with other heads. Queries, keys and values have biases."""

from . import decoder, rotary, windows
from .family import ONLY, head_sizes

FAMILY = decoder.family(
    "Qwen 2", "qwen2", "Qwen2",
    fixed={"query_key_value_bias": True},
    entries=decoder.entries(
        vocab_size=151936, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, intermediate_size=22016,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False),
        rotary.flat(10000.0, 32768),
        windows.QWEN,
    ),
    only={**ONLY, "use_mrope": False},
    prefixes=("transformer.",),  # of Qwen2ForQuestionAnswering
    table=decoder.table(*decoder.NORMS, *decoder.attention(output=False), *decoder.feed_forward()),
)  # fmt: skip
