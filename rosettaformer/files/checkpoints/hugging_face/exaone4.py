"""EXAONE 4 (LG AI Research 2025): Exaone4Model, Exaone4ForCausalLM and others.

Norms follow the sub-layers, and each head's queries and keys are normalized. If some layers have an
attention window, the layers without a window do not rotate.
"""

from collections.abc import Mapping
from typing import Any

from . import decoder, rotary, windows
from .essential import shortest
from .family import Joint, head_sizes

_WINDOWS = {"sliding_window": 4096, "sliding_window_pattern": 4}


def _all_but_some(entries: Mapping[str, Any], layers: int) -> list[str]:
    if entries["sliding_window"] is None:  # the library would divide by zero
        raise ValueError("layer_types must be set if sliding_window is null")
    return windows.all_but_some(entries, layers)


def _read(entries: Mapping[str, Any]) -> dict[str, Any]:
    kinds = windows.layer_kinds(entries, lambda layers: _all_but_some(entries, layers))
    return {"rotary_pattern": shortest([entries["sliding_window"] is None or kind == "local" for kind in kinds])}


FAMILY = decoder.family(
    "EXAONE 4", "exaone4", "Exaone4",
    fixed={"norm_placement": "after", "query_key_norm": "head"},
    entries=decoder.entries(
        vocab_size=102400, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, intermediate_size=16384,
        rms_norm_eps=1e-5,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False),
        rotary.flat(10000.0, 2048),
        Joint(
            {"layer_types": None, **_WINDOWS}, {"rotary_pattern": "layer_types"}, _read, lambda config, said: {},  # set by the windows
            "if `sliding_window` is set, only the layers with a window rotate",
        ),
        windows.by_layer(
            _WINDOWS, _all_but_some,
            "`layer_types` sets which layers have a window; default: all but the last of every `sliding_window_pattern`",
        ),
    ),
    prefixes=("transformer.",),  # of Exaone4ForQuestionAnswering
    table=decoder.table(
        *decoder.attention(inputs=False, output=False), *decoder.HEAD_NORMS, *decoder.AFTER,
        *decoder.feed_forward(),
    ),
)  # fmt: skip
