"""GLM-4 of 2025 (GLM Team 2025): Glm4Model, Glm4ForCausalLM and classes with other heads.

GLM with another norm after each sub-layer.
"""

from . import decoder
from .decoder import scale
from .glm import ENTRIES, JOINTS

FAMILY = decoder.family(
    "GLM-4-0414", "glm4", "Glm4",
    fixed={"rotary_layout": "interleaved", "norm_placement": "sandwich"},
    entries=ENTRIES,
    joints=JOINTS,
    without=("ForQuestionAnswering",),
    table=decoder.table(
        scale("input_layernorm", "self_attention_norm"),
        scale("post_self_attn_layernorm", "self_attention_output_norm"),
        scale("post_attention_layernorm", "feed_forward_norm"),
        scale("post_mlp_layernorm", "feed_forward_output_norm"),
        *decoder.attention(output=False),
        *decoder.GATE_AND_HIDDEN,
    ),
)  # fmt: skip
