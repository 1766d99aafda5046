"""Qwen 3 (Yang et al. 2025): Qwen3Model, Qwen3ForCausalLM and classes with other heads. Queries and keys are normed over each head."""

from . import decoder, rotary, windows
from .family import HARMLESS, ONLY, Family, head_sizes

FAMILY = Family(
    name="Qwen 3",
    model_type="qwen3",
    fixed={**decoder.FIXED, "query_key_norm": "head"},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS,
        vocab_size=151936, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, intermediate_size=22016,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": 128}, divides=False),
        rotary.flat(10000.0, 32768),
        windows.QWEN,
    ),
    only=ONLY,
    harmless=HARMLESS,
    prefixes=("transformer.",),  # of Qwen3ForQuestionAnswering
    base="Qwen3Model",
    classes=decoder.classes("Qwen3"),
    table=decoder.table(*decoder.NORMS, *decoder.attention(), *decoder.HEAD_NORMS, *decoder.feed_forward()),
    **decoder.COMMON,
)  # fmt: skip
