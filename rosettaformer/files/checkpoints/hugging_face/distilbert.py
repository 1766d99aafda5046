"""DistilBERT (Sanh et al. 2019): DistilBertModel, DistilBertForMaskedLM and others.

A BERT without segments. Only its classification head has a pooler, which uses a ReLU.
"""

from .. import tables
from ..tables import Part, Row, Table
from . import bert
from .family import GELU, HARMLESS, Entry, Family, Head, head_sizes

_LAYER: Table = (
    *tables.dense("attention.q_lin", "self_attention.query", "(h k) d", "(h k)"),
    *tables.dense("attention.k_lin", "self_attention.key", "(g k) d", "(g k)"),
    *tables.dense("attention.v_lin", "self_attention.value", "(g e) d", "(g e)"),
    *tables.dense("attention.out_lin", "self_attention.output", "d (h e)", "d"),
    *tables.within("sa_layer_norm", "self_attention_norm", tables.NORM),
    *tables.dense("ffn.lin1", "feed_forward.hidden", "f d", "f"),
    *tables.dense("ffn.lin2", "feed_forward.output", "d f", "d"),
    *tables.within("output_layer_norm", "feed_forward_norm", tables.NORM),
)

FAMILY = Family(
    name="DistilBERT",
    model_type="distilbert",
    fixed={**bert.FIXED, "segments": 0, "epsilon": 1e-12, "pooler_activation": "relu"},
    unused=bert.UNUSED,
    entries=(
        Entry("vocab_size", 30522, ("source_vocabulary", "target_vocabulary")),
        Entry("dim", 768, ("model_width",)),
        Entry("n_layers", 6, ("encoder_layers",)),
        Entry("n_heads", 12, ("heads", "key_value_heads")),
        Entry("hidden_dim", 3072, ("feed_forward_width",)),
        Entry("max_position_embeddings", 512, ("max_positions",)),
        Entry("activation", "gelu", ("activation",), GELU),
        Entry("tie_word_embeddings", True, ("tie_logits",)),
        Entry(
            "dropout", 0.1, ("dropout_rate",),
            note="not applied to the output of attention; training here applies it there as well",
        ),
        Entry("attention_dropout", 0.1, ("attention_dropout_rate",)),
        Entry("seq_classif_dropout", 0.2, ("classifier_dropout_rate",)),
    ),
    joints=(head_sizes("dim", "n_heads"),),
    # sinusoidal_pos_embds only initializes the position table; qa_dropout belongs to another head
    harmless=HARMLESS | {"sinusoidal_pos_embds", "qa_dropout"},
    ignored={"tie_weights_": "the class reads `tie_word_embeddings`"},
    aliases={"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"},
    prefix="distilbert.",
    outside=r"(vocab_transform|vocab_layer_norm|vocab_projector|pre_classifier|classifier|qa_outputs)\..*",
    classes={
        "DistilBertForMaskedLM": ("masked_language_head",),
        "DistilBertModel": (),
        "DistilBertForSequenceClassification": ("pooler", "classifier"),
        "DistilBertForMultipleChoice": ("pooler", "multiple_choice_head"),
        "DistilBertForTokenClassification": ("token_classifier",),
        "DistilBertForQuestionAnswering": ("question_answering_head",),
    },
    heads=(
        Head("masked_language_head", r"vocab_(transform|layer_norm|projector)\..*", "masked_language_head"),
        Head("pooler", r"pre_classifier\..*", "pooler"),
        Head("classifier", r"classifier\..*", "classes"),
        Head(
            "multiple_choice_head", r"classifier\..*",
            shown=lambda shapes, labels: labels > 1 and shapes.get("classifier.bias") == (1,) and "pre_classifier.weight" in shapes,
        ),
        Head("token_classifier", r"classifier\..*", shown=lambda shapes, labels: "pre_classifier.weight" not in shapes),
        Head("question_answering_head", r"qa_outputs\..*"),
    ),
    table=(
        Row("embeddings.word_embeddings.weight", (Part("source_embedding.table", "v d"),)),
        Row("embeddings.position_embeddings.weight", (Part("source_position_embedding.table", "p d"),)),
        *tables.within("embeddings.LayerNorm", "source_embedding_norm", tables.NORM),
        *tables.within("transformer.layer.*", "encoder.layers.*", _LAYER),
        *tables.dense("pre_classifier", "pooler", "r d", "r"),
        *tables.dense("classifier", "classifier", "c r", "c"),
        *tables.dense("vocab_transform", "masked_language_head.hidden", "r d", "r"),
        *tables.within("vocab_layer_norm", "masked_language_head.norm", tables.NORM),
        *tables.dense("vocab_projector", "masked_language_head.logits", "v d", "v"),
    ),
    buffers=r"embeddings\.position_ids",
)  # fmt: skip
