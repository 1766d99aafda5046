"""OLMo 3 (OLMo Team 2025): Olmo3Model, Olmo3ForCausalLM and a class with another head.

OLMo 2 with a window in all but the last of every four layers; scaling changes the rotation of layers without one.
"""

from . import decoder, rotary, windows
from .family import ONLY, head_sizes


def _three_of_four(entries: windows.Entries, layers: int) -> list[str]:
    return ["local" if (layer + 1) % 4 else "global" for layer in range(layers)]


FAMILY = decoder.family(
    "OLMo 3", "olmo3", "Olmo3",
    fixed={"norm_placement": "after", "query_key_norm": "width", "norm_cast_before_scale": False},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS,
        vocab_size=50304, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=11008, rms_norm_eps=1e-5,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False),
        rotary.by_layer_type(500000.0, 500000.0, 2048, local=None),
        windows.by_layer(
            {"sliding_window": 4096}, _three_of_four,
            "`layer_types` says which layers have the window; without it all but the last of every four",
            unused=4096,  # without which the class fails
        ),
    ),
    only={**ONLY, "partial_rotary_factor": (None, 1.0)},
    without=("ForTokenClassification", "ForQuestionAnswering"),
    table=decoder.table(*decoder.attention(), *decoder.WIDTH_NORMS, *decoder.AFTER, *decoder.feed_forward()),
)  # fmt: skip
