"""Shared by all decoders since Llama: config fields, entries, heads and tensors."""

from collections.abc import Mapping
from typing import Any

from reference_numpy import TransformerConfig

from .. import tables
from ..paper import PAPER
from ..tables import Part, Row, Table
from .family import GELU, Entry, Family, Head, Joint

FIXED: Mapping[str, Any] = {
    **PAPER, "encoder_layers": 0, "positions": "rotary", "gated_feed_forward": True, "norm": "rms", "norm_offset": False,
    "norm_cast_before_scale": True, "norm_placement": "pre", "final_norm": True, "scale_embedding": False, "share_embeddings": False,
    "query_key_value_bias": False, "attention_output_bias": False, "feed_forward_bias": False, "output_bias": False, "padding_id": None,
    "dropout_rate": 0.0, "hidden_dropout_rate": 0.0,
}  # fmt: skip
# fields of decoders whose norms have an offset
LAYER_NORM = {"norm": "layer", "norm_offset": True}
# fields of the Gemma families
GEMMA = {"norm_one_plus_scale": True, "norm_cast_before_scale": False, "scale_embedding": True, "round_embedding_scale": True}
UNUSED = ("share_embeddings", "source_vocabulary", "padding_id", "classifier_dropout_rate")

SILU = {"silu": "silu", "swish": "silu", **GELU}
TANH = {"gelu_pytorch_tanh": "gelu_tanh", **GELU, "silu": "silu", "swish": "silu"}
ATTENTION_BIAS = Entry("attention_bias", False, ("query_key_value_bias", "attention_output_bias"))
NOT_EMBEDDED = "applies to the outputs of sub-layers only; training here also applies it to the embedded tokens"
MLP_BIAS = Entry("mlp_bias", False, ("feed_forward_bias",))
CLIP = Entry("clip_qkv", None, ("query_key_value_clip",))
_FIELDS = {
    "vocab_size": ("target_vocabulary", "source_vocabulary"),
    "hidden_size": ("model_width",),
    "num_hidden_layers": ("decoder_layers",),
    "num_attention_heads": ("heads",),
    "num_key_value_heads": ("key_value_heads",),
    "intermediate_size": ("feed_forward_width",),
    "tie_word_embeddings": ("tie_logits",),
    "attention_dropout": ("attention_dropout_rate",),
}


def entries(
    *others: Entry,
    act: str = "hidden_act",
    words: Mapping[str, str] = SILU,
    epsilon: str = "rms_norm_eps",
    without: tuple[str, ...] = (),
    **defaults: Any,
) -> tuple[Entry, ...]:
    """Returns the entries of every decoder, with these defaults, followed by `others`.

    act, epsilon: the names of the entries for the activation and for the norms' epsilon, empty if
    there is none. without: common entries that the family lacks.
    """
    usual = {epsilon: 1e-6, "tie_word_embeddings": False, "num_key_value_heads": None, "attention_dropout": 0.0} | defaults
    shared = {"num_key_value_heads": lambda given: given["num_attention_heads"]}
    fields = {name: fields for name, fields in _FIELDS.items() if name not in without}
    fields |= {epsilon: ("epsilon",)} if epsilon else {}
    return (
        *(Entry(name, usual[name], own, otherwise=shared.get(name, lambda given: None)) for name, own in fields.items()),
        *((Entry(act, next(iter(words)), ("activation",), words),) if act else ()),
        *others,
    )


# prefix of the base class's tensors
PREFIX = "model."
OUTSIDE = r"(lm_head|score|qa_outputs)\..*"
BUFFERS = r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
HEADS = (
    Head("language_head", r"lm_head\..*", ""),
    Head("sequence_classifier", r"score\..*"),
    Head("token_classifier", r"score\..*", shown=lambda shapes, labels: "score.bias" in shapes),
    Head("question_answering_head", r"qa_outputs\..*"),
)
_CLASSES = {
    "ForCausalLM": ("language_head",), "Model": (), "ForSequenceClassification": ("sequence_classifier",),
    "ForTokenClassification": ("token_classifier",), "ForQuestionAnswering": ("question_answering_head",),
}  # fmt: skip


def classes(name: str, without: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Returns the classes whose names start with `name`, except those that the family lacks."""
    return {name + end: heads for end, heads in _CLASSES.items() if end not in without}


def scale(native: str, canonical: str, axes: str = "d") -> Row:
    """Returns the row of a norm without offset."""
    return Row(f"{native}.weight", (Part(f"{canonical}.scale", axes),))


def dense(native: str, canonical: str, kernel: str, bias: str = "") -> Table:
    """Returns the rows of a linear layer. bias: the axes of the bias; empty if there is none."""
    return tables.dense(native, canonical, kernel, bias)[: 1 + bool(bias)]


def attention(inputs: bool = True, output: bool = True) -> Table:
    """Returns the rows of attention. inputs, output: whether these projections may have biases."""
    return (
        *dense("self_attn.q_proj", "self_attention.query", "(h k) d", "(h k)" * inputs),
        *dense("self_attn.k_proj", "self_attention.key", "(g k) d", "(g k)" * inputs),
        *dense("self_attn.v_proj", "self_attention.value", "(g e) d", "(g e)" * inputs),
        *dense("self_attn.o_proj", "self_attention.output", "d (h e)", "d" * output),
    )


def feed_forward(
    biases: bool = False,
    native: str = "mlp",
    canonical: str = "feed_forward",
    width: str = "f",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Table:
    """Returns the rows of a feed-forward. biases: whether its layers may have biases.

    width: the axis of the hidden layer. names: its gate, hidden and output layers.
    """
    return (
        *dense(f"{native}.{names[0]}", f"{canonical}.gate", f"{width} d", width * biases),
        *dense(f"{native}.{names[1]}", f"{canonical}.hidden", f"{width} d", width * biases),
        *dense(f"{native}.{names[2]}", f"{canonical}.output", f"d {width}", "d" * biases),
    )


def fused(native: str, groups: str = "h") -> Table:
    """Returns the rows of one projection with the query, key and value of each head together.

    groups: the axis of the heads; of g, all queries of a key head are together.
    """
    axes = {"query": "h k", "key": "g k", "value": "g e"}
    kernels = tuple(Part(f"self_attention.{name}.kernel", f"({own}) d") for name, own in axes.items())
    biases = tuple(Part(f"self_attention.{name}.bias", f"({own})") for name, own in axes.items())
    return Row(f"{native}.weight", kernels, groups=groups), Row(f"{native}.bias", biases, groups=groups)


# gate and hidden layer packed into one tensor
GATE_AND_HIDDEN: Table = (
    Row("mlp.gate_up_proj.weight", (Part("feed_forward.gate.kernel", "f d"), Part("feed_forward.hidden.kernel", "f d"))),
    *dense("mlp.down_proj", "feed_forward.output", "d f"),
)
# norms of queries and keys: per head, and over all heads together
HEAD_NORMS: Table = (scale("self_attn.q_norm", "self_attention.query_norm", "k"), scale("self_attn.k_norm", "self_attention.key_norm", "k"))
WIDTH_NORMS: Table = (
    scale("self_attn.q_norm", "self_attention.query_norm", "(h k)"), scale("self_attn.k_norm", "self_attention.key_norm", "(g k)"),
)  # fmt: skip
# norms before each sub-layer
NORMS: Table = (scale("input_layernorm", "self_attention_norm"), scale("post_attention_layernorm", "feed_forward_norm"))
# norms after each sub-layer
AFTER: Table = (scale("post_attention_layernorm", "self_attention_norm"), scale("post_feedforward_layernorm", "feed_forward_norm"))
# Gemma's norms: before and after each sub-layer
SANDWICH: Table = (
    scale("input_layernorm", "self_attention_norm"),
    scale("post_attention_layernorm", "self_attention_output_norm"),
    scale("pre_feedforward_layernorm", "feed_forward_norm"),
    scale("post_feedforward_layernorm", "feed_forward_output_norm"),
)


# bias of the logits
HEAD_BIAS = Row("lm_head.bias", (Part("logits.bias", "v"),))


def placement(entry: str, default: bool, parallel: str) -> Joint:
    """Returns the joint of the entry that decides between a parallel block, with this placement, and pre-norm."""

    def read(entries: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(entries[entry], bool):
            raise ValueError(f"{entry} must be true or false; got {entries[entry]!r:.100}")
        return {"norm_placement": parallel if entries[entry] else "pre"}

    note = "attention and feed-forward read the same vectors; if false, one follows the other"
    return Joint({entry: default}, {"norm_placement": entry}, read, lambda config, said: {entry: config.parallel}, note)


def head_norms(entry: str, kind: str = "head", default: bool = False) -> Joint:
    """Returns the joint of the entry that decides whether each head's queries and keys are normalized."""

    def read(entries: Mapping[str, Any]) -> dict[str, Any]:
        if entries[entry] not in (True, False, None):
            raise ValueError(f"{entry} must be true or false; got {entries[entry]!r:.100}")
        return {"query_key_norm": kind if entries[entry] else "none"}

    def write(config: TransformerConfig, said: Mapping[str, Any]) -> dict[str, Any]:
        return {entry: config.query_key_norm == kind}

    note = "each head's queries and keys are normalized"
    return Joint({entry: default}, {"query_key_norm": entry}, read, write, note)


def layer_norm(native: str, canonical: str, axes: str = "d") -> Table:
    """Returns the rows of a norm with offset."""
    return scale(native, canonical, axes), Row(f"{native}.bias", (Part(f"{canonical}.offset", axes),))


# like NORMS, with offsets
LAYER_NORMS: Table = (*layer_norm("input_layernorm", "self_attention_norm"), *layer_norm("post_attention_layernorm", "feed_forward_norm"))


_LAST: Table = (scale("norm", "decoder.final_norm"),)


def table(*layer: Row, last: Table = _LAST, embedding: str = "embed_tokens", layers: str = "layers.*", head: str = "lm_head") -> Table:
    """Returns the rows of a model. layer: the rows of a layer. last: the rows of the final norm, and others after it."""
    return (
        Row(f"{embedding}.weight", (Part("target_embedding.table", "v d"),)),
        *tables.within(layers, "decoder.layers.*", layer),
        *last,
        Row(f"{head}.weight", (Part("logits.kernel", "v d"),)),
    )


def family(name: str, model_type: str, begin: str, without: tuple[str, ...] = (), **given: Any) -> Family:
    """Returns a family whose classes start with `begin`. given: `fixed` is merged into FIXED."""
    usual: dict[str, Any] = {
        "unused": UNUSED, "prefix": PREFIX, "outside": OUTSIDE, "heads": HEADS, "buffers": BUFFERS, "classes": classes(begin, without),
    }  # fmt: skip
    fixed = {**FIXED, **given.pop("fixed", {})}
    return Family(name=name, model_type=model_type, fixed=fixed, **usual | given)
