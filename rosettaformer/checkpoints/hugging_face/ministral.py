"""Ministral (Mistral AI 2024): MinistralModel, MinistralForCausalLM and classes with other heads.

Mistral with windows by layer.
"""

from . import decoder, rotary, windows
from .family import head_sizes


def _alike(entries: windows.Entries, layers: int) -> list[str]:
    return ["global" if entries["sliding_window"] is None else "local"] * layers


FAMILY = decoder.family(
    "Ministral", "ministral", "Ministral",
    entries=decoder.entries(
        vocab_size=32000, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False),
        rotary.flat(10000.0, 131072),
        windows.by_layer(
            {"sliding_window": 4096}, _alike,
            "`layer_types` says which layers have the window; without it all, if it has a value",
            unused=4096,  # without which the class fails
        ),
    ),
    prefixes=("transformer.",),  # of MinistralForQuestionAnswering
    table=decoder.table(*decoder.NORMS, *decoder.attention(inputs=False, output=False), *decoder.feed_forward()),
)  # fmt: skip
