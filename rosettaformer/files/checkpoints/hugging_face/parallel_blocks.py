"""Decoders whose attention and feed-forward read the same vectors, as parallel blocks."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.fields import is_integer

from .. import tables
from ..tables import Part, Row, Table
from . import decoder, gpt_neo, rotary, windows
from .essential import shortest
from .family import GELU, HARMLESS, ONLY, Entry, Head, Joint, head_sizes

_SILU = {"silu": "silu", "swish": "silu"}
_QUERY, _KEY, _VALUE = (
    Part(f"self_attention.{name}.kernel", f"({axes}) d") for name, axes in (("query", "h k"), ("key", "g k"), ("value", "g e"))
)
_NO_GATE = {**decoder.LAYER_NORM, "gated_feed_forward": False, "feed_forward_bias": True}
_FREE_HEADS = head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False)

# Black et al. 2022; query_key_value has the rows of the query, key and value of each head together
GPT_NEOX = decoder.family(
    "GPT-NeoX", "gpt_neox", "GPTNeoX",
    fixed=_NO_GATE,
    entries=decoder.entries(
        Entry("num_attention_heads", 64, ("heads", "key_value_heads")),
        Entry("attention_bias", True, ("query_key_value_bias", "attention_output_bias")),
        Entry("hidden_dropout", 0.0, ("dropout_rate",)),
        words=GELU | _SILU, epsilon="layer_norm_eps", without=("num_attention_heads", "num_key_value_heads"),
        vocab_size=50432, hidden_size=6144, num_hidden_layers=44, intermediate_size=24576, layer_norm_eps=1e-5,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads"),
        rotary.flat(10000.0, 2048, partial=0.25),
        decoder.placement("use_parallel_residual", True, "parallel"),
    ),
    harmless=HARMLESS | {"classifier_dropout", "is_decoder"},
    aliases={"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"},
    prefix="gpt_neox.",
    outside=r"(embed_out|score|qa_outputs|classifier)\..*",
    heads=(Head("language_head", r"embed_out\..*", ""), *gpt_neo.FAMILY.heads[1:]),
    buffers=rf"{decoder.BUFFERS}|layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
    older={"lm_head.weight": "embed_out.weight"},
    table=decoder.table(
        *decoder.LAYER_NORMS,
        *decoder.fused("attention.query_key_value"),
        *tables.dense("attention.dense", "self_attention.output", "d (h e)", "d"),
        *tables.dense("mlp.dense_h_to_4h", "feed_forward.hidden", "f d", "f"),
        *tables.dense("mlp.dense_4h_to_h", "feed_forward.output", "d f", "d"),
        last=decoder.layer_norm("final_layer_norm", "decoder.final_norm"),
        embedding="embed_in",
        head="embed_out",
    ),
)  # fmt: skip


def _normed(entries: Mapping[str, Any]) -> dict[str, Any]:
    normed, size, width, heads = (entries[name] for name in ("qk_layernorm", "head_dim", "hidden_size", "num_attention_heads"))
    if not isinstance(normed, bool):
        raise ValueError(f"qk_layernorm must be true or false; got {normed!r:.100}")
    if normed and size is not None and is_integer(width) and is_integer(heads) and heads > 0 and size != width // heads:
        wanted = f"hidden_size / num_attention_heads = {width // heads} if qk_layernorm is true"
        raise ValueError(f"head_dim must be {wanted}; got {size!r:.100}")
    return {"query_key_norm": "head" if normed else "none"}


# Phi-1 and Phi-2 (Li et al. 2023): one norm for both, and logits with a bias
PHI = decoder.family(
    "Phi", "phi", "Phi",
    fixed={
        **_NO_GATE, "norm_placement": "parallel_shared", "query_key_value_bias": True, "attention_output_bias": True, "output_bias": True,
    },
    entries=decoder.entries(
        Entry("resid_pdrop", 0.0, ("dropout_rate",)),
        Entry("embd_pdrop", 0.0, ("dropout_rate",)),
        words={"gelu_new": "gelu_tanh", **GELU, **_SILU}, epsilon="layer_norm_eps",
        vocab_size=51200, hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, intermediate_size=8192, layer_norm_eps=1e-5,
    ),
    joints=(
        _FREE_HEADS, rotary.flat(10000.0, 2048, partial=0.5), dataclasses.replace(decoder.head_norms("qk_layernorm"), read=_normed),
    ),
    without=("ForQuestionAnswering",),
    table=decoder.table(
        *decoder.layer_norm("input_layernorm", "self_attention_norm"),
        *decoder.attention(output=False)[:-1],
        *decoder.layer_norm("self_attn.q_layernorm", "self_attention.query_norm", "k"),
        *decoder.layer_norm("self_attn.k_layernorm", "self_attention.key_norm", "k"),
        *tables.dense("self_attn.dense", "self_attention.output", "d (h e)", "d"),
        *tables.dense("mlp.fc1", "feed_forward.hidden", "f d", "f"),
        *tables.dense("mlp.fc2", "feed_forward.output", "d f", "d"),
        last=(*decoder.layer_norm("final_layernorm", "decoder.final_norm"), decoder.HEAD_BIAS),
    ),
)  # fmt: skip

# Command R (Cohere 2024): one norm for both, without offset; adjacent features rotate together; in Command R+ each
# head's queries and keys are normalized with a scale of their own
COHERE = decoder.family(
    "Cohere", "cohere", "Cohere",
    fixed={"norm": "layer", "norm_cast_before_scale": False, "norm_placement": "parallel_shared", "rotary_layout": "interleaved"},
    entries=decoder.entries(
        decoder.ATTENTION_BIAS,
        Entry("logit_scale", 0.0625, ("logit_scale",)),
        epsilon="layer_norm_eps",
        vocab_size=256000, hidden_size=8192, num_hidden_layers=40, num_attention_heads=64, intermediate_size=22528, layer_norm_eps=1e-5,
        tie_word_embeddings=True,
    ),
    joints=(_FREE_HEADS, rotary.flat(500000.0, 8192), decoder.head_norms("use_qk_norm", "each_head")),
    without=("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    table=decoder.table(
        decoder.scale("input_layernorm", "self_attention_norm"), *decoder.attention(), *decoder.feed_forward(),
        decoder.scale("self_attn.q_norm", "self_attention.query_norm", "h k"),
        decoder.scale("self_attn.k_norm", "self_attention.key_norm", "g k"),
    ),
)  # fmt: skip


def _local(entries: Mapping[str, Any]) -> dict[str, Any]:
    kinds = windows.layer_kinds(entries, lambda layers: windows.all_but_some(entries, layers))
    return {"rotary_pattern": shortest([kind == "local" for kind in kinds])}


# Command A (Cohere 2025): only the layers with a window rotate
_WINDOWS = {"sliding_window": 4096, "sliding_window_pattern": 4}
COHERE2 = decoder.family(
    "Cohere 2", "cohere2", "Cohere2",
    fixed=COHERE.fixed,
    entries=COHERE.entries,
    joints=(
        _FREE_HEADS,
        rotary.flat(10000.0, 8192),
        Joint(
            {"layer_types": None, **_WINDOWS}, {"rotary_pattern": "layer_types"}, _local, lambda config, said: {},  # set by the windows
            "only the layers with a window rotate",
        ),
        windows.by_layer(
            _WINDOWS, windows.all_but_some,
            "`layer_types` sets which layers have a window; default: all but the last of every `sliding_window_pattern`",
            unused=4096,  # the class fails without it
        ),
    ),
    without=("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    table=COHERE.table,
)  # fmt: skip


def _rotating(entries: Mapping[str, Any]) -> dict[str, Any]:
    width, heads, rotating = (entries[name] for name in ("n_embd", "n_head", "rotary_dim"))
    size = width // heads if is_integer(width) and is_integer(heads) and heads > 0 else 0
    if not is_integer(rotating) or not 1 <= rotating <= size:
        raise ValueError(f"rotary_dim must be an integer from 1 to n_embd / n_head = {size}; got {rotating!r:.100}")
    share = rotating / size
    return {"rotary_fraction": share if int(size * share) == rotating else math.nextafter(share, 1)}


def _in_parts(entries: Mapping[str, Any]) -> dict[str, Any]:
    if is_integer(entries["n_head"]) and entries["n_head"] % _PARTS:
        raise ValueError(f"n_head must be a multiple of {_PARTS}; got {entries['n_head']}")
    return {}


_PARTS = 4  # of the heads in CodeGen's qkv_proj
_GPTJ_LAYER: Table = (
    *decoder.layer_norm("ln_1", "self_attention_norm"),
    *(Row(f"attn.{letter}_proj.weight", (part,)) for letter, part in zip("qkv", (_QUERY, _KEY, _VALUE), strict=True)),
    *decoder.dense("attn.out_proj", "self_attention.output", "d (h e)"),
    *tables.dense("mlp.fc_in", "feed_forward.hidden", "f d", "f"),
    *tables.dense("mlp.fc_out", "feed_forward.output", "d f", "d"),
)
_GPTJ: dict[str, Any] = {
    "fixed": {
        **_NO_GATE, "norm_placement": "parallel_shared", "rotary_layout": "interleaved", "rotary_base": 10000.0, "output_bias": True,
    },
    "joints": (
        head_sizes("n_embd", "n_head"),
        Joint(
            {"rotary_dim": 64}, {"rotary_fraction": "rotary_dim"}, _rotating,
            lambda config, said: {"rotary_dim": config.rotary_size}, "features of a head that rotate, out of `n_embd` / `n_head`",
        ),
    ),
    "harmless": HARMLESS | {"n_positions", "n_ctx", "gradient_checkpointing", "rotary", "scale_attn_weights", "summary_type",
                            "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"},
    "aliases": {
        "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "max_position_embeddings": "n_positions",
    },
    "prefix": "transformer.",
    "buffers": r"h\.\d+\.attn\.(bias|masked_bias|causal_mask|embed_positions)",
}  # fmt: skip


def _sizes(**defaults: Any) -> tuple[Entry, ...]:
    """Returns the entries of GPT-J's config.json with these defaults."""
    return (
        Entry("vocab_size", 50400, ("target_vocabulary", "source_vocabulary")),
        Entry("n_embd", 4096, ("model_width",)),
        Entry("n_layer", 28, ("decoder_layers",)),
        Entry("n_head", 16, ("heads", "key_value_heads")),
        Entry("n_inner", None, ("feed_forward_width",), otherwise=lambda entries: 4 * entries["n_embd"]),
        Entry("activation_function", "gelu_new", ("activation",), {"gelu_new": "gelu_tanh", **GELU, **_SILU}),
        Entry("layer_norm_epsilon", 1e-5, ("epsilon",)),
        Entry("tie_word_embeddings", False, ("tie_logits",)),
        Entry("resid_pdrop", 0.0, ("dropout_rate",)),
        Entry("embd_pdrop", 0.0, ("dropout_rate",)),
        Entry("attn_pdrop", 0.0, ("attention_dropout_rate",)),
    )


def _gptj_table(layer: Table) -> Table:
    last = (*decoder.layer_norm("ln_f", "decoder.final_norm"), decoder.HEAD_BIAS)
    return decoder.table(*layer, last=last, embedding="wte", layers="h.*")


# Wang & Komatsuzaki 2021: one norm for both; adjacent features rotate together
GPTJ = decoder.family(
    "GPT-J", "gptj", "GPTJ",
    entries=_sizes(), without=("ForTokenClassification",), table=_gptj_table(_GPTJ_LAYER), **_GPTJ,
)  # fmt: skip

# Nijkamp et al. 2022: GPT-J with queries, values and keys in one tensor, in four parts of the heads
CODEGEN = decoder.family(
    "CodeGen", "codegen", "CodeGen",
    entries=_sizes(),
    without=("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    table=_gptj_table((Row("attn.qkv_proj.weight", (_QUERY, _VALUE, _KEY), groups=_PARTS), *_GPTJ_LAYER[:2], *_GPTJ_LAYER[5:])),
    **_GPTJ | {"joints": (*_GPTJ["joints"], Joint({}, {}, _in_parts, lambda config, said: {}, ""))},
)  # fmt: skip


def _shape(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Reads how a Falcon groups key heads, and where its norms are."""
    flags = {name: entries[name] for name in ("new_decoder_architecture", "multi_query", "parallel_attn")}
    if any(not isinstance(flag, bool) for flag in flags.values()):
        raise ValueError(f"{', '.join(flags)} must be true or false; got {', '.join(map(repr, flags.values()))}")
    renewed, shared, parallel = flags.values()
    norms = entries["num_ln_in_parallel_attn"]
    norms = 1 + renewed if norms is None else norms
    if norms not in (1, 1 + renewed) or isinstance(norms, bool):
        raise ValueError(f"num_ln_in_parallel_attn must be 1, or 2 with new_decoder_architecture; got {norms!r:.100}")
    if renewed and not parallel:
        raise ValueError("parallel_attn must be true with new_decoder_architecture; got false")
    groups = entries["num_kv_heads"] if renewed else 1 if shared else None
    return {
        "key_value_heads": entries["num_attention_heads"] if groups is None else groups,
        "norm_placement": "pre" if not parallel else "parallel" if norms == 2 else "parallel_shared",
    }


def _shaped(config: TransformerConfig, said: Mapping[str, Any]) -> dict[str, Any]:
    renewed = config.norm_placement == "parallel" or 1 < config.key_value_heads < config.heads
    return {
        "new_decoder_architecture": renewed, "multi_query": config.key_value_heads == 1, "parallel_attn": config.parallel,
        "num_ln_in_parallel_attn": 2 if config.norm_placement == "parallel" else 1, "num_kv_heads": config.key_value_heads,
    }  # fmt: skip


# Almazrouei et al. 2023: one norm or two for both; query_key_value has the queries of each group of heads, its key and its value together
FALCON = decoder.family(
    "Falcon", "falcon", "Falcon",
    fixed={**decoder.LAYER_NORM, "gated_feed_forward": False},
    entries=decoder.entries(
        Entry("bias", False, ("query_key_value_bias", "attention_output_bias", "feed_forward_bias")),
        Entry("ffn_hidden_size", None, ("feed_forward_width",), otherwise=lambda entries: 4 * entries["hidden_size"]),
        Entry("hidden_dropout", 0.0, ("dropout_rate",), note=decoder.NOT_EMBEDDED),
        act="activation", words=GELU | _SILU, epsilon="layer_norm_epsilon",
        without=("num_key_value_heads", "intermediate_size"),
        vocab_size=65024, hidden_size=4544, num_hidden_layers=32, num_attention_heads=71, layer_norm_epsilon=1e-5,
        tie_word_embeddings=True,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads"),
        rotary.flat(10000.0, 2048),
        Joint(
            {"new_decoder_architecture": False, "multi_query": True, "parallel_attn": True, "num_ln_in_parallel_attn": None,
             "num_kv_heads": None},
            {"key_value_heads": "num_kv_heads", "norm_placement": "parallel_attn"}, _shape, _shaped,
            "`num_kv_heads` applies to `new_decoder_architecture`; otherwise one key head serves all (`multi_query`), or each has its own",
        ),
    ),
    only={**ONLY, "alibi": False},  # the class rounds its slopes to bfloat16
    prefix="transformer.",
    outside=gpt_neo.FAMILY.outside,
    heads=gpt_neo.FAMILY.heads,
    buffers=r"h\.\d+\.self_attention\.rotary_emb\.inv_freq",
    table=decoder.table(
        *decoder.layer_norm("input_layernorm", "self_attention_norm"),
        *decoder.layer_norm("post_attention_layernorm", "feed_forward_norm"),
        *decoder.layer_norm("ln_attn", "self_attention_norm"),
        *decoder.layer_norm("ln_mlp", "feed_forward_norm"),
        *decoder.fused("self_attention.query_key_value", groups="g"),
        *tables.dense("self_attention.dense", "self_attention.output", "d (h e)", "d"),
        *tables.dense("mlp.dense_h_to_4h", "feed_forward.hidden", "f d", "f"),
        *tables.dense("mlp.dense_4h_to_h", "feed_forward.output", "d f", "d"),
        last=decoder.layer_norm("ln_f", "decoder.final_norm"),
        embedding="word_embeddings", layers="h.*",
    ),
    lacking=lambda config: r"h\.\*\.(input|post_attention)_layernorm\..*" if config.norm_placement == "parallel" else r"h\.\*\.ln_.*",
)  # fmt: skip
