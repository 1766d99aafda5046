"""Granite (IBM 2024), whose embeddings, scores, sub-layer outputs and logits are multiplied.

With experts, or with experts and a feed-forward for all tokens.
"""

from collections.abc import Mapping
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.fields import is_number

from ..tables import Part, Row
from . import decoder, experts, rotary
from .family import Entry, Joint, head_sizes

# entry -> its field; logits are divided by the last
_FIELDS = {
    "embedding_multiplier": "embedding_multiplier", "residual_multiplier": "residual_multiplier", "attention_multiplier": "score_scale",
    "logits_scaling": "logit_scale",
}  # fmt: skip
_LOGITS = "logits_scaling"


def _read(entries: Mapping[str, Any]) -> dict[str, Any]:
    for name in _FIELDS:
        if not is_number(entries[name]) or entries[name] <= 0:
            raise ValueError(f"{name} must be a number greater than 0; got {entries[name]!r:.100}")
    return {field: entries[name] for name, field in _FIELDS.items()} | {"logit_scale": 1 / entries[_LOGITS]}


def _write(config: TransformerConfig, said: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: getattr(config, field) for name, field in _FIELDS.items()}
    divisor = 1 / config.logit_scale
    near = round(divisor, 12)  # the divisor may have been rounded twice
    found[_LOGITS] = near if near and 1 / near == config.logit_scale else divisor
    return found | {"attention_multiplier": config.key_size**-0.5 if config.score_scale is None else config.score_scale}


_MULTIPLIERS = Joint(
    dict.fromkeys(_FIELDS, 1.0), {field: name for name, field in _FIELDS.items()}, _read, _write, f"logits are divided by `{_LOGITS}`"
)
_HEADS = head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False)
_SIZES: dict[str, Any] = {"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}

GRANITE = decoder.family(
    "Granite", "granite", "Granite",
    entries=decoder.entries(decoder.ATTENTION_BIAS, decoder.MLP_BIAS, **_SIZES, intermediate_size=11008),
    joints=(_HEADS, rotary.flat(10000.0, 2048), _MULTIPLIERS),
    without=("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    table=decoder.table(*decoder.NORMS, *decoder.attention(), *decoder.feed_forward(biases=True)),
)  # fmt: skip

_IN, _ALL = "feed_forward.experts", "feed_forward.shared"
_MIXTURE: dict[str, Any] = {
    "fixed": {"router_scores": "chosen_softmax", "router_normalize": False},
    "joints": (*GRANITE.joints, experts.count("num_local_experts", 8)),
    "ignored": experts.TRAINING,
    "without": ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    "older": {
        "block_sparse_moe.experts.gate_up_proj": "block_sparse_moe.input_linear.weight",
        "block_sparse_moe.experts.down_proj": "block_sparse_moe.output_linear.weight",
        "block_sparse_moe.router.weight": "block_sparse_moe.router.layer.weight",
    },
}  # fmt: skip
_ENTRIES = (decoder.ATTENTION_BIAS, experts.width("intermediate_size", 11008), experts.per_token(2))
_ROWS = (
    *decoder.NORMS,
    *decoder.attention(),
    *decoder.dense("block_sparse_moe.router.layer", "feed_forward.router", "x d"),
    Row("block_sparse_moe.input_linear.weight", (Part(f"{_IN}.gate.kernel", "x m d"), Part(f"{_IN}.hidden.kernel", "x m d")), axis=1),
    *decoder.dense("block_sparse_moe.output_linear", f"{_IN}.output", "x d m"),
)

GRANITE_MOE = decoder.family(
    "Granite-MoE", "granitemoe", "GraniteMoe",
    entries=decoder.entries(*_ENTRIES, without=("intermediate_size",), **_SIZES),
    table=decoder.table(*_ROWS),
    **_MIXTURE,
)  # fmt: skip

GRANITE_MOE_SHARED = decoder.family(
    "Granite-MoE shared", "granitemoeshared", "GraniteMoeShared",
    entries=decoder.entries(
        *_ENTRIES, Entry("shared_intermediate_size", 0, ("shared_width",)), without=("intermediate_size",), **_SIZES,
    ),
    table=decoder.table(
        *_ROWS,
        Row("shared_mlp.input_linear.weight", (Part(f"{_ALL}.gate.kernel", "w d"), Part(f"{_ALL}.hidden.kernel", "w d"))),
        *decoder.dense("shared_mlp.output_linear", f"{_ALL}.output", "d w"),
    ),
    **_MIXTURE,
)  # fmt: skip
