"""GLM-4 of 2025 (GLM Team 2025): Glm4Model, Glm4ForCausalLM and classes with other heads.

GLM with another norm after each sub-layer.
"""

from . import decoder
from .decoder import scale
from .family import HARMLESS, ONLY, Family
from .glm import ENTRIES, JOINTS

FAMILY = Family(
    name="GLM-4-0414",
    model_type="glm4",
    fixed={**decoder.FIXED, "rotary_layout": "interleaved", "norm_placement": "sandwich"},
    entries=ENTRIES,
    joints=JOINTS,
    only=ONLY,
    harmless=HARMLESS,
    base="Glm4Model",
    classes=decoder.classes("Glm4", without=("ForQuestionAnswering",)),
    table=decoder.table(
        scale("input_layernorm", "self_attention_norm"),
        scale("post_self_attn_layernorm", "self_attention_output_norm"),
        scale("post_attention_layernorm", "feed_forward_norm"),
        scale("post_mlp_layernorm", "feed_forward_output_norm"),
        *decoder.attention(output=False),
        *decoder.GATE_AND_HIDDEN,
    ),
    **decoder.COMMON,
)
