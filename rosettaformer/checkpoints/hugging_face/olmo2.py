"""OLMo 2 (OLMo Team 2024): Olmo2Model, Olmo2ForCausalLM and a class with another head.

Norms stand after the sub-layers, and queries and keys are normed over all heads together.
"""

from . import decoder, rotary
from .family import head_sizes

FAMILY = decoder.family(
    "OLMo 2", "olmo2", "Olmo2",
    fixed={"norm_placement": "after", "query_key_norm": "width", "norm_cast_before_scale": False},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS,
        vocab_size=50304, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=11008, rms_norm_eps=1e-5,
    ),
    joints=(head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False), rotary.flat(10000.0, 2048)),
    without=("ForTokenClassification", "ForQuestionAnswering"),
    table=decoder.table(*decoder.attention(), *decoder.WIDTH_NORMS, *decoder.AFTER, *decoder.feed_forward()),
)  # fmt: skip
