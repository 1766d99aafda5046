"""Gemma 2 and the text models of Gemma 3 (Gemma Team 2024, 2025).

Gemma 2 has norms before and after each sub-layer, soft caps on scores and logits, and a window in
every other layer. In Gemma 3, one layer in six has no window and rotates differently, and each
head's queries and keys are normalized.
"""

from collections.abc import Mapping
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.fields import is_integer

from . import decoder, rotary, windows
from .family import ONLY, Entry, Joint, head_sizes


def _scale(entries: Mapping[str, Any]) -> dict[str, Any]:
    scalar = entries["query_pre_attn_scalar"]
    if not is_integer(scalar) or scalar < 1:
        raise ValueError(f"query_pre_attn_scalar must be an integer of at least 1; got {scalar!r:.100}")
    return {"score_scale": scalar**-0.5}


def _scalar(config: TransformerConfig, said: Mapping[str, Any]) -> dict[str, Any]:
    return {"query_pre_attn_scalar": config.key_size if config.score_scale is None else round(config.score_scale**-2)}


_SCORE_SCALE = Joint(
    {"query_pre_attn_scalar": 256}, {"score_scale": "query_pre_attn_scalar"}, _scale, _scalar, "scores are multiplied by its -1/2 power"
)
_LOGIT_CAP = "final_logit_softcapping"
_SHAPE: dict[str, Any] = {
    "hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 9216,
    "tie_word_embeddings": True, "act": "hidden_activation", "words": decoder.TANH,
}  # fmt: skip

FAMILY = decoder.family(
    "Gemma 2", "gemma2", "Gemma2",
    fixed={**decoder.GEMMA, "norm_placement": "sandwich"},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS,
        Entry("attn_logit_softcapping", 50.0, ("score_cap",)),
        Entry(_LOGIT_CAP, 30.0, ("logit_cap",)),
        vocab_size=256000, **_SHAPE,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": 256}),
        rotary.flat(10000.0, 8192),
        windows.by_layer(
            {"sliding_window": 4096},
            lambda entries, layers: ["global" if layer % 2 else "local" for layer in range(layers)],
            "`layer_types` sets which layers have a window; default: the first, third, ...",
        ),
        _SCORE_SCALE,
    ),
    only={**ONLY, "use_bidirectional_attention": (None, False)},
    ignored={"hidden_act": "the class reads `hidden_activation`", "cache_implementation": "concerns only the cache of generation"},
    without=("ForQuestionAnswering",),
    table=decoder.table(*decoder.SANDWICH, *decoder.attention(), *decoder.feed_forward()),
)  # fmt: skip

GEMMA3 = decoder.family(
    "Gemma 3", "gemma3_text", "Gemma3",
    fixed={**decoder.GEMMA, "norm_placement": "sandwich", "query_key_norm": "head"},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS,
        Entry(_LOGIT_CAP, None, ("logit_cap",)),
        vocab_size=262208, **_SHAPE,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": 256}),
        rotary.by_layer_type(1000000.0, 10000.0, 131072),
        windows.by_layer(
            {"sliding_window": 4096, "sliding_window_pattern": 6},
            windows.all_but_some,
            "`layer_types` sets which layers have a window; default: all but the last of every `sliding_window_pattern`",
        ),
        _SCORE_SCALE,
    ),
    only={**ONLY, "use_bidirectional_attention": (False, None), "partial_rotary_factor": (None, 1.0)},
    ignored={
        "attn_logit_softcapping": "the class stores it, but caps no scores",
        "_sliding_window_pattern": "the library writes it next to `layer_types`, but does not read it",
        "cache_implementation": "concerns only the cache of generation",
        "hidden_act": "the class reads `hidden_activation`",
    },
    classes={
        "Gemma3ForCausalLM": ("language_head",), "Gemma3TextModel": (), "Gemma3TextForSequenceClassification": ("sequence_classifier",),
    },
    table=decoder.table(*decoder.SANDWICH, *decoder.attention(), *decoder.HEAD_NORMS, *decoder.feed_forward()),
)  # fmt: skip
