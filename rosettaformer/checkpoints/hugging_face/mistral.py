"""Mistral (Jiang et al. 2023): MistralModel, MistralForCausalLM and classes with other heads. All layers have a window, or none."""

from . import decoder, rotary, windows
from .family import head_sizes

FAMILY = decoder.family(
    "Mistral", "mistral", "Mistral",
    entries=decoder.entries(
        vocab_size=32000, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False),
        rotary.flat(10000.0, 131072),
        windows.everywhere(4096),
    ),
    table=decoder.table(*decoder.NORMS, *decoder.attention(inputs=False, output=False), *decoder.feed_forward()),
)  # fmt: skip
