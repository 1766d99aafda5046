"""ELECTRA (Clark et al. 2020): a BERT without pooler. Embeddings must have the model's width, as in its base and large sizes."""

from dataclasses import replace

from .. import tables
from . import bert
from .family import HARMLESS, Entry, Head

_EXACT = {"gelu": "gelu_erf", "gelu_python": "gelu_erf"}  # the generator's head has no other
_SUMMARY = {"summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"}  # for multiple choice

FAMILY = replace(
    bert.FAMILY,
    name="ELECTRA",
    model_type="electra",
    entries=(*bert.entries(30522, 512, _EXACT), Entry("embedding_size", 128, ("model_width",))),
    only={name: value for name, value in bert.FAMILY.only.items() if name != "embedding_size"},
    harmless=HARMLESS | _SUMMARY,
    nameless=False,
    prefix="electra.",
    outside=r"(generator_predictions|generator_lm_head|discriminator_predictions|sequence_summary|classifier|qa_outputs)\..*",
    classes={
        "ElectraForMaskedLM": ("masked_language_head",),
        "ElectraModel": (),
        "ElectraForPreTraining": ("discriminator_head",),
        "ElectraForSequenceClassification": ("sequence_classifier",),
        "ElectraForMultipleChoice": ("multiple_choice_head",),
        "ElectraForTokenClassification": ("token_classifier",),
        "ElectraForQuestionAnswering": ("question_answering_head",),
    },
    heads=(
        Head("masked_language_head", r"generator_(predictions|lm_head)\..*", "masked_language_head"),
        Head("discriminator_head", r"discriminator_predictions\..*"),
        Head("sequence_classifier", r"classifier\.(dense|out_proj)\..*"),
        Head(
            "multiple_choice_head", r"(sequence_summary|classifier)\..*",
            shown=lambda shapes, labels: "sequence_summary.summary.weight" in shapes,
        ),
        Head("token_classifier", r"classifier\.(weight|bias)"),
        Head("question_answering_head", r"qa_outputs\..*"),
    ),
    table=(
        *bert.BODY,
        *tables.dense("generator_predictions.dense", "masked_language_head.hidden", "r d", "r"),
        *tables.within("generator_predictions.LayerNorm", "masked_language_head.norm", tables.NORM),
        *tables.dense("generator_lm_head", "masked_language_head.logits", "v d", "v"),
    ),
    twins={},
)  # fmt: skip
