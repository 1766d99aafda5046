"""Gemma 3, its models of text (Gemma Team 2025): Gemma3TextModel and Gemma3ForCausalLM.

One layer in six has no window, and rotates otherwise than those with one; queries and keys are normed over each head.
"""

from collections.abc import Mapping
from typing import Any

from . import decoder, rotary, windows
from .family import ONLY, Entry, head_sizes
from .gemma2 import LOGIT_CAP, SCORE_SCALE


def _all_but_some(entries: Mapping[str, Any], layers: int) -> list[str]:
    name = "sliding_window_pattern"
    return ["local" if local else "global" for local in windows.every(entries[name], layers, name)]


FAMILY = decoder.family(
    "Gemma 3", "gemma3_text", "Gemma3",
    fixed={**decoder.GEMMA, "norm_placement": "sandwich", "query_key_norm": "head"},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS,
        Entry(LOGIT_CAP, None, ("logit_cap",)),
        act="hidden_activation",
        words=decoder.TANH,
        vocab_size=262208, hidden_size=2304, num_hidden_layers=26, num_attention_heads=8, num_key_value_heads=4, intermediate_size=9216,
        tie_word_embeddings=True,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": 256}),
        rotary.by_layer_type(1000000.0, 10000.0, 131072),
        windows.by_layer(
            {"sliding_window": 4096, "sliding_window_pattern": 6},
            _all_but_some,
            "`layer_types` says which layers have the window; without it all but the last of every `sliding_window_pattern`",
        ),
        SCORE_SCALE,
    ),
    only={**ONLY, "use_bidirectional_attention": (False, None), "partial_rotary_factor": (None, 1.0)},
    ignored={
        "attn_logit_softcapping": "the class stores it, and caps no scores",
        "_sliding_window_pattern": "the library writes it beside `layer_types`, and does not read it",
        "cache_implementation": "how a search keeps its past",
        "hidden_act": "the class reads `hidden_activation`",
    },
    classes={
        "Gemma3ForCausalLM": ("language_head",), "Gemma3TextModel": (), "Gemma3TextForSequenceClassification": ("sequence_classifier",),
    },
    table=decoder.table(*decoder.SANDWICH, *decoder.attention(), *decoder.HEAD_NORMS, *decoder.feed_forward()),
)  # fmt: skip
