"""Encoders with rotary positions and gated feed-forward networks: nomic BERT and ModernBERT."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.fields import is_integer

from .. import tables
from ..tables import Part, Row, Table
from . import bert, decoder, rotary, windows
from .essential import shortest
from .family import HARMLESS, ONLY, Entry, Family, Head, Joint, head_sizes

_FIXED = {
    name: value for name, value in bert.FIXED.items()
    if name not in {"rotary_base", "rotary_scaling", "rotary_fraction", "local_rotary_base", "local_rotary_scaling", "attention_bias"}
} | {"positions": "rotary", "max_positions": 0, "gated_feed_forward": True}  # fmt: skip
_NOMIC = {"hidden_act": "silu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # defaults unlike BERT's
_QUERY_KEY_VALUE = {"query": "(h k) d", "key": "(g k) d", "value": "(g e) d"}


def _fused(native: str) -> Table:
    """Returns the rows of one projection to queries, keys and values."""
    parts = {f"self_attention.{name}": axes for name, axes in _QUERY_KEY_VALUE.items()}
    return (
        Row(f"{native}.weight", tuple(Part(f"{name}.kernel", axes) for name, axes in parts.items())),
        Row(f"{native}.bias", tuple(Part(f"{name}.bias", axes.removesuffix(" d")) for name, axes in parts.items())),
    )


NOMIC_BERT = Family(  # Nussbaum et al. 2024
    name="Nomic BERT",
    model_type="nomic_bert",
    fixed={**_FIXED, "attention_bias": False, "feed_forward_bias": False},
    unused=bert.UNUSED,
    entries=tuple(
        replace(entry, default=_NOMIC.get(entry.name, entry.default)) for entry in bert.entries(30528, positions=None, words=decoder.SILU)
    ),
    joints=(head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False), rotary.flat(1000.0, 2048)),
    prefix="nomic_bert.",
    outside=bert.FAMILY.outside,
    classes={
        "NomicBertForMaskedLM": ("masked_language_head",),
        "NomicBertModel": (),
        "NomicBertForSequenceClassification": ("pooler", "classifier"),
        "NomicBertForTokenClassification": ("token_classifier",),
    },
    heads=tuple(head for head in bert.FAMILY.heads if head.name in ("pooler", "masked_language_head", "classifier", "token_classifier")),
    table=(
        *bert.BODY[:1],
        *bert.BODY[2:3],
        *tables.within("emb_ln", "source_embedding_norm", tables.NORM),
        *tables.within(
            "encoder.layers.*", "encoder.layers.*", (
                *_fused("attn.Wqkv")[:1],
                *decoder.dense("attn.out_proj", "self_attention.output", "d (h e)"),
                *tables.within("norm1", "self_attention_norm", tables.NORM),
                *decoder.dense("mlp.fc11", "feed_forward.hidden", "f d"),
                *decoder.dense("mlp.fc12", "feed_forward.gate", "f d"),
                *decoder.dense("mlp.fc2", "feed_forward.output", "d f"),
                *tables.within("norm2", "feed_forward_norm", tables.NORM),
            ),
        ),
        *tables.dense("pooler.dense", "pooler", "r d", "r"),
        *tables.dense("classifier", "classifier", "c r", "c"),
        *tables.dense("cls.predictions.transform.dense", "masked_language_head.hidden", "r d", "r"),
        *tables.within("cls.predictions.transform.layer_norm", "masked_language_head.norm", tables.NORM),
        *tables.dense("cls.predictions.decoder", "masked_language_head.logits", "v d", "v"),
    ),
    together=(  # the names in the class, which published files do not have
        *tables.within("embeddings.LayerNorm", "source_embedding_norm", tables.NORM),
        *tables.within(
            "layers.*", "encoder.layers.*", (
                *decoder.attention(inputs=False, output=False),
                *tables.within("post_attention_layernorm", "self_attention_norm", tables.NORM),
                *decoder.feed_forward(),
                *tables.within("post_mlp_layernorm", "feed_forward_norm", tables.NORM),
            ),
        ),
    ),
    buffers=r"embeddings\.(position_ids|token_type_ids)|rotary_emb\.inv_freq",
    twins=bert.FAMILY.twins,
)  # fmt: skip


def _read(entries: Mapping[str, Any]) -> dict[str, Any]:
    width, interval = entries["local_attention"], entries["global_attn_every_n_layers"]
    if not is_integer(width) or width < 0:
        raise ValueError(f"local_attention must be an integer of at least 0; got {width!r:.100}")

    def usual(layers: int) -> list[str]:
        windows.every(interval, layers, "global_attn_every_n_layers")
        return ["local" if layer % interval else "global" for layer in range(layers)]

    kinds = windows.layer_kinds(entries, usual)
    return {"layer_pattern": shortest(kinds), "window": width // 2 + 1 if "local" in kinds else 0}


def _write(config: TransformerConfig, said: Mapping[str, Any]) -> dict[str, Any]:
    kinds = [config.layer_kind(layer) for layer in range(config.encoder_layers)]
    types = [rotary.LOCAL if kind.window else rotary.GLOBAL for kind in kinds]
    return {"layer_types": types, "local_attention": 2 * max(config.window - 1, 0)}


MODERN_BERT = Family(  # Warner et al. 2024
    name="ModernBERT",
    model_type="modernbert",
    fixed={
        **{name: value for name, value in _FIXED.items() if name not in ("layer_pattern", "window", "norm_offset", "head_bias")},
        "segments": 0, "norm_placement": "pre", "first_norm": False, "final_norm": True, "rotary_fraction": 1.0,
    },
    unused=bert.UNUSED,
    entries=(
        Entry("vocab_size", 50368, ("source_vocabulary", "target_vocabulary")),
        Entry("hidden_size", 768, ("model_width",)),
        Entry("num_hidden_layers", 22, ("encoder_layers",)),
        Entry("num_attention_heads", 12, ("heads", "key_value_heads")),
        Entry("intermediate_size", 1152, ("feed_forward_width",)),
        Entry("hidden_activation", "gelu", ("activation",), decoder.SILU),
        Entry("classifier_activation", "gelu", ("activation",), decoder.SILU),
        Entry("norm_eps", 1e-5, ("epsilon",)),
        Entry("norm_bias", False, ("norm_offset",)),
        Entry("attention_bias", False, ("query_key_value_bias", "attention_output_bias")),
        Entry("mlp_bias", False, ("feed_forward_bias",)),
        Entry("classifier_bias", False, ("head_bias",)),
        Entry("decoder_bias", True, ("output_bias",)),
        Entry("tie_word_embeddings", True, ("tie_logits",)),
        Entry(
            "embedding_dropout", 0.0, ("dropout_rate",),
            note="applies to the embedded tokens only; training here also applies it to the outputs of sub-layers",
        ),
        Entry("attention_dropout", 0.0, ("attention_dropout_rate",), note="training here does not apply it to the output of attention"),
        Entry("mlp_dropout", 0.0, ("hidden_dropout_rate",)),
        Entry("classifier_dropout", 0.0, ("classifier_dropout_rate",)),
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads"),
        rotary.by_layer_type(160000.0, 10000.0, 8192, "local_rope_theta", "global_rope_theta"),
        Joint(
            {"layer_types": None, "local_attention": 128, "global_attn_every_n_layers": 3},
            {"layer_pattern": "layer_types", "window": "local_attention"}, _read, _write,
            "a local layer sees `local_attention` // 2 tokens on each side",
        ),
    ),
    only={**ONLY, "rope_scaling": None, "position_embedding_type": ("absolute", "rope", None)},
    harmless=HARMLESS | {
        "cls_token_id", "classifier_pooling", "deterministic_flash_attn", "initializer_cutoff_factor", "reference_compile",
        "repad_logits_with_grad", "sparse_pred_ignore_index", "sparse_prediction",
    },
    ignored={"layer_norm_eps": "the class reads `norm_eps`"},
    prefix="model.",
    outside=r"(head|decoder|classifier)\..*",
    classes={
        "ModernBertForMaskedLM": ("masked_language_head",),
        "ModernBertModel": (),
        "ModernBertForSequenceClassification": ("sequence_classifier",),
        "ModernBertForTokenClassification": ("token_classifier",),
        "ModernBertForQuestionAnswering": ("question_answering_head",),
        "ModernBertForMultipleChoice": ("multiple_choice_head",),
    },
    heads=(
        Head("masked_language_head", r"(head|decoder|classifier)\..*", "masked_language_head"),
        Head("sequence_classifier", r"(head|decoder|classifier)\..*", shown=lambda shapes, labels: "classifier.weight" in shapes),
        *(Head(name, r"(head|decoder|classifier)\..*") for name in ("token_classifier", "question_answering_head", "multiple_choice_head")),
    ),
    table=(
        Row("embeddings.tok_embeddings.weight", (Part("source_embedding.table", "v d"),)),
        *tables.within("embeddings.norm", "source_embedding_norm", tables.NORM),
        *tables.within(
            "layers.*", "encoder.layers.*", (
                *tables.within("attn_norm", "self_attention_norm", tables.NORM),
                *_fused("attn.Wqkv"),
                *tables.dense("attn.Wo", "self_attention.output", "d (h e)", "d"),
                *tables.within("mlp_norm", "feed_forward_norm", tables.NORM),
                Row("mlp.Wi.weight", (Part("feed_forward.gate.kernel", "f d"), Part("feed_forward.hidden.kernel", "f d"))),
                Row("mlp.Wi.bias", (Part("feed_forward.gate.bias", "f"), Part("feed_forward.hidden.bias", "f"))),
                *tables.dense("mlp.Wo", "feed_forward.output", "d f", "d"),
            ),
        ),
        *tables.within("final_norm", "encoder.final_norm", tables.NORM),
        *tables.dense("head.dense", "masked_language_head.hidden", "r d", "r"),
        *tables.within("head.norm", "masked_language_head.norm", tables.NORM),
        *tables.dense("decoder", "masked_language_head.logits", "v d", "v"),
    ),
    buffers=r"rotary_emb\..*",
)  # fmt: skip
