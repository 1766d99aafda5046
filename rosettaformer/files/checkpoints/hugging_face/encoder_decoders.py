"""Encoder-decoders that fairseq and Marian trained: Marian, Pegasus, BART, mBART and M2M-100."""

from collections.abc import Mapping
from typing import Any

from reference_numpy.fields import is_integer

from .. import tables
from ..paper import PAPER
from ..tables import Part, Row, Table
from . import decoder
from .family import GELU, HARMLESS, ONLY, Entry, Family, Head, Joint, head_sizes

_FIXED = {
    **PAPER, "norm_placement": "pre", "final_norm": True, "embedding_norm": False, "attention_bias": True, "feed_forward_bias": True,
    "output_bias": True, "padding_id": None, "epsilon": 1e-5, "position_start": "row",
}  # fmt: skip
_SINES = {"positions": "sinusoidal", "sinusoid_layout": "halves"}
_TABLES = {"positions": "learned", "position_offset": 2}
_POSITIONS, _PADDING = "max_position_embeddings", "pad_token_id"
_SHARE, _TIE, _TARGET = "share_encoder_decoder_embeddings", "tie_word_embeddings", "decoder_vocab_size"
_UNREAD = dict.fromkeys(
    ("add_bias_logits", "add_final_layer_norm", "attention_softmax_in_fp32", "extra_pos_embeddings", "force_bos_token_to_be_generated",
     "normalize_before", "normalize_embedding", "static_position_embeddings"),
    "published folders have it, but the class does not read it",
)  # fmt: skip
_OTHER_HEADS = dict.fromkeys(("classifier_dropout", "classif_dropout"), "belongs to a head that is not supported")


def _layers(entries: Mapping[str, Any]) -> dict[str, Any]:
    counts = {name: entries[name] for name in ("encoder_layers", "decoder_layers")}
    if not all(is_integer(count) and count > 0 for count in counts.values()):
        raise ValueError(f"encoder_layers and decoder_layers must be at least 1; got {', '.join(map(repr, counts.values())):.100}")
    return counts


_LAYERS = Joint(
    {"encoder_layers": 12, "decoder_layers": 12}, {"encoder_layers": "encoder_layers", "decoder_layers": "decoder_layers"}, _layers,
    lambda config, said: {"encoder_layers": config.encoder_layers, "decoder_layers": config.decoder_layers}, "at least 1",
)  # fmt: skip


def _attention(native: str, canonical: str) -> Table:
    kernels = {"q_proj": ("query", "h k"), "k_proj": ("key", "g k"), "v_proj": ("value", "g e")}
    rows = [decoder.dense(f"{native}.{name}", f"{canonical}.{own}", f"({axes}) d", f"({axes})") for name, (own, axes) in kernels.items()]
    output = decoder.dense(f"{native}.out_proj", f"{canonical}.output", "d (h e)", "d")
    return *(row for pair in rows for row in pair), *output, *decoder.layer_norm(f"{native}_layer_norm", f"{canonical}_norm")


_SELF = _attention("self_attn", "self_attention")
_NETWORK: Table = (
    *decoder.dense("fc1", "feed_forward.hidden", "f d", "f"),
    *decoder.dense("fc2", "feed_forward.output", "d f", "d"),
    *decoder.layer_norm("final_layer_norm", "feed_forward_norm"),
)


def _stack(stack: str, side: str, layer: Table) -> Table:
    return (
        Row(f"{stack}.embed_tokens.weight", (Part(f"{side}_embedding.table", "v d"),)),
        Row(f"{stack}.embed_positions.weight", (Part(f"{side}_position_embedding.table", "p d"),)),
        *decoder.layer_norm(f"{stack}.layernorm_embedding", f"{side}_embedding_norm"),
        *tables.within(f"{stack}.layers.*", f"{stack}.layers.*", layer),
        *decoder.layer_norm(f"{stack}.layer_norm", f"{stack}.final_norm"),
    )


_TABLE: Table = (
    *_stack("encoder", "source", (*_SELF, *_NETWORK)),
    *_stack("decoder", "target", (*_SELF, *_attention("encoder_attn", "cross_attention"), *_NETWORK)),
    Row("final_logits_bias", (Part("logits.bias", "1 v"),)),
    Row("lm_head.weight", (Part("logits.kernel", "v d"),)),
)


def _family(
    name: str, model_type: str, begin: str, head: str, fixed: Mapping[str, Any], joint: Joint, *others: Entry,
    vocabulary: int, act: str = "gelu", scaled: bool = False, dropped: float = 0.0, heads: bool = True, **more: Any,
) -> Family:  # fmt: skip
    """Returns a family. head: end of the class with logits. vocabulary, act, scaled, dropped: the library's defaults."""
    fixed = {**_FIXED, **fixed}
    learned = fixed["positions"] == "learned"
    parts = {"_position_embedding": learned, "_embedding_norm": fixed["embedding_norm"], ".final_norm": fixed["final_norm"],
             "logits.bias": fixed["output_bias"]}  # fmt: skip
    table = tuple(row for row in _TABLE if all(present or part not in row.parts[0].name for part, present in parts.items()))
    classes = {f"{begin}{head}": ("language_head",), f"{begin}Model": ()}
    if heads:
        ends = {"ForSequenceClassification": "sequence_classifier", "ForQuestionAnswering": "question_answering_head"}
        classes |= {begin + end: (of_end,) for end, of_end in ends.items()}
    return Family(
        name=name,
        model_type=model_type,
        fixed=fixed,
        unused=("padding_id", "classifier_dropout_rate"),
        entries=(
            Entry("vocab_size", vocabulary, ("source_vocabulary",)),
            Entry("d_model", 1024, ("model_width",)),
            Entry("encoder_attention_heads", 16, ("heads", "key_value_heads")),
            Entry("decoder_attention_heads", 16, ("heads", "key_value_heads")),
            Entry("encoder_ffn_dim", 4096, ("feed_forward_width",)),
            Entry("decoder_ffn_dim", 4096, ("feed_forward_width",)),
            Entry("activation_function", act, ("activation",), {**GELU, "silu": "silu", "swish": "silu"}),
            Entry("scale_embedding", scaled, ("scale_embedding",)),
            Entry("dropout", 0.1, ("dropout_rate",)),
            Entry("attention_dropout", dropped, ("attention_dropout_rate",)),
            Entry("activation_dropout", 0.0, ("hidden_dropout_rate",)),
            *others,
        ),
        joints=(_LAYERS, head_sizes("d_model", "encoder_attention_heads"), joint),
        only={**ONLY, "is_encoder_decoder": True, "is_decoder": False},
        harmless=(HARMLESS | {"init_std", "encoder_layerdrop", "decoder_layerdrop"}) - more.pop("read", set()),
        ignored=_UNREAD | _OTHER_HEADS | more.pop("ignored", {}),
        aliases={"hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads", "num_hidden_layers": "encoder_layers"},
        prefix="model.",
        outside=r"final_logits_bias|(lm_head|classification_head|qa_outputs)\..*",
        classes=classes,
        heads=(
            Head("language_head", r"final_logits_bias|lm_head\..*", ""),
            Head("sequence_classifier", r"classification_head\..*"),
            Head("question_answering_head", r"qa_outputs\..*"),
        ),
        table=table,
        twins={"shared.weight": "encoder.embed_tokens.weight"},
        twinned=_SHARE,
        buffers=r"(en|de)coder\.version" if learned else r"(en|de)coder\.(version|embed_positions\.\w+)",
        **more,
    )  # fmt: skip


def _tied(entries: Mapping[str, Any]) -> dict[str, Any]:
    tied = entries[_TIE]
    return {"tie_logits": tied, "share_embeddings": tied, "target_vocabulary": entries["vocab_size"]}


# one vocabulary; the two tables and the logits are tied together, or not at all
_ALL_TIED = Joint(
    {_TIE: True}, {"tie_logits": _TIE, "share_embeddings": _TIE, "target_vocabulary": "vocab_size"}, _tied,
    lambda config, said: {_TIE: config.tie_logits}, "ties the tables of both sides and the logits",
)  # fmt: skip


def _of_marian(entries: Mapping[str, Any]) -> dict[str, Any]:
    tied, shared, size, other = entries[_TIE], entries[_SHARE], entries["vocab_size"], entries[_TARGET] or entries["vocab_size"]
    if not isinstance(shared, bool) or (shared and other != size):
        raise ValueError(f"{_TARGET} must equal vocab_size if {_SHARE} is true; got {other!r:.50} and {size!r:.50}")
    return {"tie_logits": tied, "share_embeddings": tied is True and shared, "target_vocabulary": other}


# Junczys-Dowmunt et al. 2018
MARIAN = _family(
    "Marian", "marian", "Marian", "MTModel", {**_SINES, "norm_placement": "post", "final_norm": False},
    Joint(
        {_TIE: True, _SHARE: True, _TARGET: None}, {"tie_logits": _TIE, "share_embeddings": _SHARE, "target_vocabulary": _TARGET},
        _of_marian,
        lambda config, said: {
            _TIE: config.tie_logits, _TARGET: config.target_vocabulary, _SHARE: config.share_embeddings
        },
        "the logits are tied to the target's table",
    ),
    vocabulary=58101, heads=False, ignored={_POSITIONS: "sinusoids have no last position"},
)  # fmt: skip

# Zhang et al. 2020
PEGASUS = _family(
    "Pegasus", "pegasus", "Pegasus", "ForConditionalGeneration", _SINES, _ALL_TIED,
    vocabulary=50265, heads=False, ignored={_POSITIONS: "sinusoids have no last position"},
    sinusoids=("encoder.embed_positions.weight", "decoder.embed_positions.weight"),
)  # fmt: skip

# Lewis et al. 2020: the embeddings are normalized
BART = _family(
    "BART", "bart", "Bart", "ForConditionalGeneration",
    {**_TABLES, "norm_placement": "post", "final_norm": False, "embedding_norm": True}, _ALL_TIED,
    Entry(_POSITIONS, 1024, ("max_positions",)), vocabulary=50265,
)  # fmt: skip

# Liu et al. 2020
MBART = _family(
    "mBART", "mbart", "MBart", "ForConditionalGeneration", {**_TABLES, "embedding_norm": True}, _ALL_TIED,
    Entry(_POSITIONS, 1024, ("max_positions",)), vocabulary=50265,
)  # fmt: skip


def _of_m2m(entries: Mapping[str, Any]) -> dict[str, Any]:
    padding = entries[_PADDING]
    if not is_integer(padding) or padding < 0:
        raise ValueError(f"{_PADDING} must be a token id; got {padding!r:.50}")
    return _tied(entries) | {"position_offset": padding + 1}


# Fan et al. 2020; NLLB Team 2022: positions are counted from the padding id
M2M_100 = _family(
    "M2M-100", "m2m_100", "M2M100", "ForConditionalGeneration",
    {**_SINES, "sinusoid_layout": "tensor2tensor", "position_start": "first_token", "output_bias": False},
    Joint(
        {_TIE: True, _PADDING: 1}, {**_ALL_TIED.fields, "position_offset": _PADDING}, _of_m2m,
        lambda config, said: {_TIE: config.tie_logits, _PADDING: config.position_offset - 1}, "position 0 follows the padding id",
    ),
    vocabulary=128112, act="relu", scaled=True, dropped=0.1, heads=False, padded_by_id=True, read={_PADDING},
    ignored={_POSITIONS: "sinusoids have no last position"},
)  # fmt: skip
