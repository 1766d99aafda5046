"""GPT-Neo (Black et al. 2021): GPTNeoModel, GPTNeoForCausalLM and others.

Every other layer has a window, scores are not scaled, and queries, keys and values lack biases.
"""

from collections.abc import Mapping
from typing import Any

from reference_numpy import TransformerConfig

from .. import tables
from ..tables import Table
from . import gpt2
from .decoder import UNUSED, dense
from .essential import shortest
from .family import GELU, Entry, Family, Joint, head_sizes
from .windows import LAYERS, sized

_KINDS = ("global", "local")


def _read(entries: Mapping[str, Any]) -> dict[str, Any]:
    layers, given = entries["num_layers"], entries["attention_layers"]
    kinds = _expanded(entries["attention_types"], layers) if given is None else given
    if not isinstance(kinds, list) or len(kinds) != layers or not {*map(str, kinds)} <= {*_KINDS}:
        name = "attention_types" if given is None else "attention_layers"
        wanted = f"{' or '.join(_KINDS)} for each of the num_layers={layers} layers"
        raise ValueError(f"{name} must list {wanted}; got {entries[name]!r:.200}")
    window = sized(entries["window_size"], "window_size") if "local" in kinds else 0
    return {"layer_pattern": shortest(kinds), "window": window}


def _expanded(said: Any, layers: Any) -> list[Any]:
    """Expands patterns with repeat counts to one kind per layer; empty if the counts do not fit."""
    groups: Any = [[[*_KINDS], 12]] if said is None else said
    try:
        length = sum(len(pattern) * count for pattern, count in groups)
        return [kind for pattern, count in groups for kind in pattern * count] if length == layers <= LAYERS else []
    except (TypeError, ValueError):
        return []


def _write(config: TransformerConfig, said: Mapping[str, Any]) -> dict[str, Any]:
    kinds = [config.layer_kind(layer) for layer in range(config.decoder_layers)]
    names = [_KINDS[bool(kind.window)] for kind in kinds]
    window = max(kind.window for kind in kinds) or said.get("window_size", 256)
    return {"attention_types": [[names, 1]], "attention_layers": names, "window_size": window}


_LAYER: Table = (
    *tables.within("ln_1", "self_attention_norm", tables.NORM),
    *dense("attn.attention.q_proj", "self_attention.query", "(h k) d"),
    *dense("attn.attention.k_proj", "self_attention.key", "(g k) d"),
    *dense("attn.attention.v_proj", "self_attention.value", "(g e) d"),
    *dense("attn.attention.out_proj", "self_attention.output", "d (h e)", "d"),
    *tables.within("ln_2", "feed_forward_norm", tables.NORM),
    *dense("mlp.c_fc", "feed_forward.hidden", "f d", "f"),
    *dense("mlp.c_proj", "feed_forward.output", "d f", "d"),
)

FAMILY = Family(
    name="GPT-Neo",
    model_type="gpt_neo",
    fixed={**gpt2.FIXED, "query_key_value_bias": False, "score_scale": 1.0},
    unused=UNUSED,
    entries=(
        Entry("vocab_size", 50257, ("target_vocabulary", "source_vocabulary")),
        Entry("hidden_size", 2048, ("model_width",)),
        Entry("num_layers", 24, ("decoder_layers",)),
        Entry("num_heads", 16, ("heads", "key_value_heads")),
        Entry("intermediate_size", None, ("feed_forward_width",), otherwise=lambda entries: 4 * entries["hidden_size"]),
        Entry("max_position_embeddings", 2048, ("max_positions",)),
        Entry("activation_function", "gelu_new", ("activation",), {"gelu_new": "gelu_tanh", **GELU}),
        Entry("layer_norm_epsilon", 1e-5, ("epsilon",)),
        Entry("tie_word_embeddings", True, ("tie_logits",)),
        Entry("resid_dropout", 0.0, ("dropout_rate",)),
        Entry("embed_dropout", 0.0, ("dropout_rate",)),
        Entry("attention_dropout", 0.0, ("attention_dropout_rate",)),
    ),
    joints=(
        head_sizes("hidden_size", "num_heads"),
        Joint(
            {"attention_types": None, "window_size": 256, "attention_layers": None},
            {"layer_pattern": "attention_layers", "window": "window_size"},
            _read, _write,
            "`attention_layers` sets which layers have a window; default: `attention_types`, which lists patterns"
            " and how often to repeat each",
        ),
    ),
    harmless=gpt2.SUMMARY | {"classifier_dropout"},
    nameless=True,
    aliases={"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"},
    prefix="transformer.",
    outside=r"(lm_head|score|classifier|qa_outputs)\..*",
    classes={
        "GPTNeoForCausalLM": ("language_head",),
        "GPTNeoModel": (),
        "GPTNeoForSequenceClassification": ("sequence_classifier",),
        "GPTNeoForTokenClassification": ("token_classifier",),
        "GPTNeoForQuestionAnswering": ("question_answering_head",),
    },
    heads=tuple(head for head in gpt2.HEADS if head.name != "multiple_choice_head"),
    table=gpt2.table(_LAYER),
    buffers=r"h\.\d+\.attn\.attention\.(bias|masked_bias)",
)  # fmt: skip
