"""SmolLM3 (Hugging Face 2025): SmolLM3Model and others. One layer in four does not rotate."""

from collections.abc import Mapping
from typing import Any

from . import decoder, rotary, windows
from .essential import shortest
from .family import Joint, head_sizes

_ROTATES, _INTERVAL = "no_rope_layers", "no_rope_layer_interval"


def _rotating(entries: Mapping[str, Any], layers: int) -> list[bool]:
    """Returns whether each layer rotates."""
    said = entries[_ROTATES]
    if said is None:
        return windows.every(entries[_INTERVAL], layers, _INTERVAL)
    if not isinstance(said, list) or len(said) < layers or not all(one in (0, 1) for one in said):
        raise ValueError(f"{_ROTATES} must be a list of {layers} numbers, 1 for layers that rotate, else 0; got {said!r:.100}")
    return [bool(one) for one in said[:layers]]


def _read(entries: Mapping[str, Any]) -> dict[str, Any]:
    layers = len(windows.layer_kinds({**entries, "layer_types": None}, lambda layers: ["global"] * layers))
    return {"rotary_pattern": shortest(_rotating(entries, layers))}


def _still(entries: Mapping[str, Any], layers: int) -> list[str]:
    """Gives a window to the layers that do not rotate, if windows are enabled."""
    if not entries["use_sliding_window"] or entries["sliding_window"] is None:
        return ["global"] * layers
    return ["global" if rotates else "local" for rotates in _rotating(entries, layers)]


FAMILY = decoder.family(
    "SmolLM3", "smollm3", "SmolLM3",
    entries=decoder.entries(
        decoder.ATTENTION_BIAS, decoder.MLP_BIAS,
        vocab_size=128256, hidden_size=2048, num_hidden_layers=36, num_attention_heads=16, num_key_value_heads=4, intermediate_size=11008,
        tie_word_embeddings=True,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False),
        rotary.flat(2000000.0, 32768),
        Joint(
            {_ROTATES: None, _INTERVAL: 4}, {"rotary_pattern": _ROTATES}, _read,
            lambda config, said: {
                _ROTATES: [int(config.layer_kind(layer).rotary) for layer in range(config.decoder_layers)]
            },
            f"1 for layers that rotate, else 0; default: all rotate but the last of every `{_INTERVAL}`",
        ),
        windows.by_layer(
            {"use_sliding_window": False, "sliding_window": None, _ROTATES: None, _INTERVAL: 4},
            _still,
            "`layer_types` sets which layers have a window; default: those that do not rotate, if `use_sliding_window`",
        ),
    ),
    ignored={"max_window_layers": "the class does not read it"},
    prefixes=("transformer.",),  # of SmolLM3ForQuestionAnswering
    table=decoder.table(*decoder.NORMS, *decoder.attention(), *decoder.feed_forward(biases=True)),
)  # fmt: skip
