"""OPT (Zhang et al. 2022) and BioGPT (Luo et al. 2022). Position 0 is row 2 of the table."""

from collections.abc import Mapping
from typing import Any

from reference_numpy import TransformerConfig

from .. import tables
from ..tables import Part, Row, Table
from . import decoder, gpt2
from .family import GELU, HARMLESS, ONLY, Entry, Family, Head, Joint, head_sizes

_BEFORE, _REMOVED, _WIDTH = "do_layer_norm_before", "_remove_final_layer_norm", "word_embed_proj_dim"


def _read(entries: Mapping[str, Any]) -> dict[str, Any]:
    before, removed, width = entries[_BEFORE], entries[_REMOVED], entries[_WIDTH]
    if not isinstance(before, bool) or not isinstance(removed, bool):
        got = f"{before!r:.100} and {removed!r:.100}"
        raise ValueError(f"{_BEFORE} and {_REMOVED} must be true or false; got {got}")
    if width not in (None, entries["hidden_size"]):
        why = "embeddings of a different width (opt-350m) are not supported"
        raise ValueError(f"{_WIDTH} must equal hidden_size: {why}; got {width!r:.100}")
    return {"norm_placement": "pre" if before else "post", "final_norm": before and not removed}


def _write(config: TransformerConfig, said: Mapping[str, Any]) -> dict[str, Any]:
    before = config.norm_placement == "pre"
    return {_BEFORE: before, _REMOVED: before and not config.final_norm, _WIDTH: config.model_width}


_LAYER: Table = (
    *tables.within("self_attn_layer_norm", "self_attention_norm", tables.NORM),
    *decoder.dense("self_attn.q_proj", "self_attention.query", "(h k) d", "(h k)"),
    *decoder.dense("self_attn.k_proj", "self_attention.key", "(g k) d", "(g k)"),
    *decoder.dense("self_attn.v_proj", "self_attention.value", "(g e) d", "(g e)"),
    *decoder.dense("self_attn.out_proj", "self_attention.output", "d (h e)", "d"),
    *tables.within("final_layer_norm", "feed_forward_norm", tables.NORM),
    *decoder.dense("fc1", "feed_forward.hidden", "f d", "f"),
    *decoder.dense("fc2", "feed_forward.output", "d f", "d"),
)

FAMILY = Family(
    name="OPT",
    model_type="opt",
    fixed={**gpt2.FIXED, "position_offset": 2, "epsilon": 1e-5},
    unused=decoder.UNUSED,
    entries=(
        Entry("vocab_size", 50272, ("target_vocabulary", "source_vocabulary")),
        Entry("hidden_size", 768, ("model_width",)),
        Entry("num_hidden_layers", 12, ("decoder_layers",)),
        Entry("num_attention_heads", 12, ("heads", "key_value_heads")),
        Entry("ffn_dim", 3072, ("feed_forward_width",)),
        Entry("max_position_embeddings", 2048, ("max_positions",)),
        Entry("activation_function", "relu", ("activation",), {"relu": "relu", **GELU}),
        Entry("enable_bias", True, ("query_key_value_bias", "attention_output_bias", "feed_forward_bias")),
        Entry("tie_word_embeddings", True, ("tie_logits",)),
        Entry("dropout", 0.1, ("dropout_rate",), note=decoder.NOT_EMBEDDED),
        Entry("attention_dropout", 0.0, ("attention_dropout_rate",)),
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads"),
        Joint(
            {_BEFORE: True, _REMOVED: False, _WIDTH: None}, {"norm_placement": _BEFORE, "final_norm": _REMOVED}, _read, _write,
            f"`{_WIDTH}` must equal `hidden_size`, which excludes opt-350m",
        ),
    ),
    only={**ONLY, "layer_norm_elementwise_affine": True, "layerdrop": 0.0},
    harmless=HARMLESS | {"init_std"},
    ignored={"activation_dropout": "the class does not read it"},
    prefix="model.",
    outside=decoder.OUTSIDE,
    classes=decoder.classes("OPT", without=("ForTokenClassification",)),
    heads=tuple(head for head in decoder.HEADS if head.name != "token_classifier"),
    table=(
        Row("decoder.embed_tokens.weight", (Part("target_embedding.table", "v d"),)),
        Row("decoder.embed_positions.weight", (Part("target_position_embedding.table", "p d"),)),
        *tables.within("decoder.layers.*", "decoder.layers.*", _LAYER),
        *tables.within("decoder.final_layer_norm", "decoder.final_norm", tables.NORM),
        Row("lm_head.weight", (Part("logits.kernel", "v d"),)),
    ),
    buffers=r"decoder\.version",
)  # fmt: skip


# the class has its own layer norms, with PyTorch's default epsilon
BIOGPT = Family(
    name="BioGPT",
    model_type="biogpt",
    fixed={**gpt2.FIXED, "position_offset": 2, "epsilon": 1e-5},
    unused=decoder.UNUSED,
    entries=(
        Entry("vocab_size", 42384, ("target_vocabulary", "source_vocabulary")),
        Entry("hidden_size", 1024, ("model_width",)),
        Entry("num_hidden_layers", 24, ("decoder_layers",)),
        Entry("num_attention_heads", 16, ("heads", "key_value_heads")),
        Entry("intermediate_size", 4096, ("feed_forward_width",)),
        Entry("max_position_embeddings", 1024, ("max_positions",)),
        Entry("hidden_act", "gelu", ("activation",), {**GELU, **decoder.SILU}),
        Entry("scale_embedding", True, ("scale_embedding",)),
        Entry("tie_word_embeddings", True, ("tie_logits",)),
        Entry("hidden_dropout_prob", 0.1, ("dropout_rate",)),
        Entry("attention_probs_dropout_prob", 0.1, ("attention_dropout_rate",)),
        Entry("activation_dropout", 0.0, ("hidden_dropout_rate",)),
    ),
    joints=(head_sizes("hidden_size", "num_attention_heads"),),
    only={**ONLY, "layerdrop": 0.0},
    ignored={"layer_norm_eps": "the class does not read it"},
    prefix="biogpt.",
    outside=r"(output_projection|score|classifier)\..*",
    classes={"BioGptForCausalLM": ("language_head",), "BioGptModel": ()},
    heads=(
        Head("language_head", r"output_projection\..*", ""),
        Head("sequence_classifier", r"score\..*"),
        Head("token_classifier", r"classifier\..*"),
    ),
    table=(
        Row("embed_tokens.weight", (Part("target_embedding.table", "v d"),)),
        Row("embed_positions.weight", (Part("target_position_embedding.table", "p d"),)),
        *tables.within("layers.*", "decoder.layers.*", _LAYER),
        *tables.within("layer_norm", "decoder.final_norm", tables.NORM),
        Row("output_projection.weight", (Part("logits.kernel", "v d"),)),
    ),
    buffers=r"\Z.",
)  # fmt: skip
