"""GPT-2 (Radford et al. 2019): GPT2Model, GPT2LMHeadModel and others.

Kernels are stored as Conv1D does: axes input, output. c_attn packs query, key and value.
"""

from .. import tables
from ..paper import CLASSIC
from ..tables import Part, Row, Table
from .decoder import UNUSED
from .family import GELU, HARMLESS, ONLY, Entry, Family, Head, head_sizes

_QUERY_KEY_VALUE = (
    Part("self_attention.query.kernel", "d (h k)"),
    Part("self_attention.key.kernel", "d (g k)"),
    Part("self_attention.value.kernel", "d (g e)"),
)
_BIASES = (
    Part("self_attention.query.bias", "(h k)"),
    Part("self_attention.key.bias", "(g k)"),
    Part("self_attention.value.bias", "(g e)"),
)
_LAYER: Table = (
    *tables.within("ln_1", "self_attention_norm", tables.NORM),
    Row("attn.c_attn.weight", _QUERY_KEY_VALUE, axis=1),
    Row("attn.c_attn.bias", _BIASES),
    *tables.dense("attn.c_proj", "self_attention.output", "(h e) d", "d"),
    *tables.within("ln_2", "feed_forward_norm", tables.NORM),
    *tables.dense("mlp.c_fc", "feed_forward.hidden", "d f", "f"),
    *tables.dense("mlp.c_proj", "feed_forward.output", "f d", "d"),
)

FIXED = {
    **CLASSIC, "encoder_layers": 0, "positions": "learned", "position_offset": 0, "position_start": "first_token", "segments": 0,
    "embedding_norm": False, "norm_placement": "pre", "final_norm": True, "scale_embedding": False, "share_embeddings": False,
    "attention_bias": True, "output_bias": False, "padding_id": None, "hidden_dropout_rate": 0.0, "classifier_dropout_rate": 0.0,
}  # fmt: skip
# summary_* entries belong to GPT2DoubleHeadsModel
SUMMARY = HARMLESS | {
    "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "predict_special_tokens",
}  # fmt: skip
HEADS = (
    Head("language_head", r"lm_head\..*", ""),
    Head("multiple_choice_head", r"multiple_choice_head\..*"),
    Head("sequence_classifier", r"score\..*"),
    Head("token_classifier", r"classifier\..*"),
    Head("question_answering_head", r"qa_outputs\..*"),
)


def table(layer: Table) -> Table:
    """Returns the tensors of a model. layer: the rows of one layer."""
    return (
        Row("wte.weight", (Part("target_embedding.table", "v d"),)),
        Row("wpe.weight", (Part("target_position_embedding.table", "p d"),)),
        *tables.within("h.*", "decoder.layers.*", layer),
        *tables.within("ln_f", "decoder.final_norm", tables.NORM),
        Row("lm_head.weight", (Part("logits.kernel", "v d"),)),
    )


FAMILY = Family(
    name="GPT-2",
    model_type="gpt2",
    fixed=FIXED,
    unused=UNUSED,
    entries=(
        Entry("vocab_size", 50257, ("target_vocabulary", "source_vocabulary")),
        Entry("n_embd", 768, ("model_width",)),
        Entry("n_layer", 12, ("decoder_layers",)),
        Entry("n_head", 12, ("heads", "key_value_heads")),
        Entry("n_inner", None, ("feed_forward_width",), otherwise=lambda entries: 4 * entries["n_embd"]),
        Entry("n_positions", 1024, ("max_positions",)),
        Entry("activation_function", "gelu_new", ("activation",), {"gelu_new": "gelu_tanh", **GELU}),
        Entry("layer_norm_epsilon", 1e-5, ("epsilon",)),
        Entry("tie_word_embeddings", True, ("tie_logits",)),
        Entry("resid_pdrop", 0.1, ("dropout_rate",)),
        Entry("embd_pdrop", 0.1, ("dropout_rate",)),
        Entry("attn_pdrop", 0.1, ("attention_dropout_rate",)),
    ),
    joints=(head_sizes("n_embd", "n_head"),),
    only={**ONLY, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    # n_ctx was the length of a buffer; reorder_and_upcast_attn sets a precision
    harmless=SUMMARY | {"n_ctx", "reorder_and_upcast_attn"},
    nameless=True,
    aliases={
        "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "max_position_embeddings": "n_positions",
    },
    prefix="transformer.",
    outside=r"(lm_head|score|classifier|qa_outputs|multiple_choice_head)\..*",
    classes={
        "GPT2LMHeadModel": ("language_head",),
        "GPT2Model": (),
        "GPT2DoubleHeadsModel": ("language_head", "multiple_choice_head"),
        "GPT2ForSequenceClassification": ("sequence_classifier",),
        "GPT2ForTokenClassification": ("token_classifier",),
        "GPT2ForQuestionAnswering": ("question_answering_head",),
    },
    heads=HEADS,
    table=table(_LAYER),
    buffers=r"h\.\d+\.attn\.(bias|masked_bias)",
)  # fmt: skip
