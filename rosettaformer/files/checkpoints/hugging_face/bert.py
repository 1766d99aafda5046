"""BERT (Devlin et al. 2019): BertModel, BertForMaskedLM and others."""

from collections.abc import Mapping

from .. import tables
from ..paper import CLASSIC
from ..tables import Part, Row, Table
from .family import GELU, HARMLESS, ONLY, Entry, Family, Head, head_sizes

_LAYER: Table = (
    *tables.dense("attention.self.query", "self_attention.query", "(h k) d", "(h k)"),
    *tables.dense("attention.self.key", "self_attention.key", "(g k) d", "(g k)"),
    *tables.dense("attention.self.value", "self_attention.value", "(g e) d", "(g e)"),
    *tables.dense("attention.output.dense", "self_attention.output", "d (h e)", "d"),
    *tables.within("attention.output.LayerNorm", "self_attention_norm", tables.NORM),
    *tables.dense("intermediate.dense", "feed_forward.hidden", "f d", "f"),
    *tables.dense("output.dense", "feed_forward.output", "d f", "d"),
    *tables.within("output.LayerNorm", "feed_forward_norm", tables.NORM),
)

FIXED = {
    **CLASSIC, "decoder_layers": 0, "positions": "learned", "position_offset": 0, "position_start": "row", "embedding_norm": True,
    "norm_placement": "post", "final_norm": False, "scale_embedding": False, "share_embeddings": True, "attention_bias": True,
    "output_bias": True, "padding_id": None, "hidden_dropout_rate": 0.0,
}  # fmt: skip
UNUSED = ("share_embeddings", "target_vocabulary", "padding_id")  # the library masks with attention_mask, not with an id
# the tensors of the encoder, without heads
BODY: Table = (
    Row("embeddings.word_embeddings.weight", (Part("source_embedding.table", "v d"),)),
    Row("embeddings.position_embeddings.weight", (Part("source_position_embedding.table", "p d"),)),
    Row("embeddings.token_type_embeddings.weight", (Part("source_segment_embedding.table", "a d"),)),
    *tables.within("embeddings.LayerNorm", "source_embedding_norm", tables.NORM),
    *tables.within("encoder.layer.*", "encoder.layers.*", _LAYER),
)


def entries(vocabulary: int, positions: int | None, words: Mapping[str, str] = GELU) -> tuple[Entry, ...]:
    """Returns a family's entries. vocabulary, positions: the library's defaults, or None."""
    counted = () if positions is None else (Entry("max_position_embeddings", positions, ("max_positions",)),)
    return (
        Entry("vocab_size", vocabulary, ("source_vocabulary", "target_vocabulary")),
        Entry("hidden_size", 768, ("model_width",)),
        Entry("num_hidden_layers", 12, ("encoder_layers",)),
        Entry("num_attention_heads", 12, ("heads", "key_value_heads")),
        Entry("intermediate_size", 3072, ("feed_forward_width",)),
        *counted,
        Entry("type_vocab_size", 2, ("segments",)),
        Entry("hidden_act", "gelu", ("activation",), words),
        Entry("layer_norm_eps", 1e-12, ("epsilon",)),
        Entry("tie_word_embeddings", True, ("tie_logits",)),
        Entry("hidden_dropout_prob", 0.1, ("dropout_rate",)),
        Entry("attention_probs_dropout_prob", 0.1, ("attention_dropout_rate",)),
        Entry("classifier_dropout", None, ("classifier_dropout_rate",), otherwise=lambda entries: entries["hidden_dropout_prob"]),
    )


FAMILY = Family(
    name="BERT",
    model_type="bert",
    fixed=FIXED,
    unused=UNUSED,
    entries=entries(30522, 512),
    joints=(head_sizes("hidden_size", "num_attention_heads"),),
    only={**ONLY, "is_decoder": False, "position_embedding_type": "absolute", "embedding_size": None},
    harmless=HARMLESS | {
        "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
    },
    nameless=True,
    prefix="bert.",
    outside=r"(cls|classifier|qa_outputs)\..*",
    classes={
        "BertForMaskedLM": ("masked_language_head",),
        "BertModel": ("pooler",),
        "BertForSequenceClassification": ("pooler", "classifier"),
        "BertForPreTraining": ("pooler", "masked_language_head", "next_sentence_head"),
        "BertForNextSentencePrediction": ("pooler", "next_sentence_head"),
        "BertForMultipleChoice": ("pooler", "multiple_choice_head"),
        "BertForTokenClassification": ("token_classifier",),
        "BertForQuestionAnswering": ("question_answering_head",),
    },
    heads=(
        Head("pooler", r"pooler\..*", "pooler"),
        Head("masked_language_head", r"cls\.predictions\..*", "masked_language_head"),
        Head("classifier", r"classifier\..*", "classes"),
        Head("next_sentence_head", r"cls\.seq_relationship\..*"),
        Head("multiple_choice_head", r"classifier\..*", shown=lambda shapes, labels: labels > 1 and shapes.get("classifier.bias") == (1,)),
        Head("token_classifier", r"classifier\..*", shown=lambda shapes, labels: "pooler.dense.weight" not in shapes),
        Head("question_answering_head", r"qa_outputs\..*"),
    ),
    table=(
        *BODY,
        *tables.dense("pooler.dense", "pooler", "r d", "r"),
        *tables.dense("classifier", "classifier", "c r", "c"),
        *tables.dense("cls.predictions.transform.dense", "masked_language_head.hidden", "r d", "r"),
        *tables.within("cls.predictions.transform.LayerNorm", "masked_language_head.norm", tables.NORM),
        *tables.dense("cls.predictions.decoder", "masked_language_head.logits", "v d", "v"),
    ),
    older={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    buffers=r"embeddings\.position_ids",
    twins={"cls.predictions.bias": "cls.predictions.decoder.bias"},
)  # fmt: skip
