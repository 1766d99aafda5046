"""GLM-4 of 2024 (GLM Team 2024): GlmModel, GlmForCausalLM and classes with other heads.

Neighbouring features of a part of each head rotate together; gate_up_proj holds the gate and the hidden layer.
"""

from . import decoder, rotary
from .family import Entry, head_sizes

ENTRIES = decoder.entries(
    Entry("attention_bias", True, ("query_key_value_bias",)),
    vocab_size=151552, hidden_size=4096, num_hidden_layers=40, num_attention_heads=32, num_key_value_heads=2, intermediate_size=13696,
    rms_norm_eps=1.5625e-7,
)  # fmt: skip
JOINTS = (
    head_sizes("hidden_size", "num_attention_heads", {"head_dim": 128}, divides=False),
    rotary.flat(10000.0, 131072, partial=0.5),
)

FAMILY = decoder.family(
    "GLM", "glm", "Glm",
    fixed={"rotary_layout": "interleaved"},
    entries=ENTRIES,
    joints=JOINTS,
    without=("ForQuestionAnswering",),
    table=decoder.table(*decoder.NORMS, *decoder.attention(output=False), *decoder.GATE_AND_HIDDEN),
)  # fmt: skip
