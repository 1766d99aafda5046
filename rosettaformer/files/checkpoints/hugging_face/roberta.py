"""RoBERTa (Liu et al. 2019): RobertaModel, RobertaForMaskedLM and others.

A BERT whose first real token has position 0, stored in the row after that of the padding id.
The library finds real tokens by the padding id, the reference by the mask.
"""

from collections.abc import Mapping
from typing import Any

from reference_numpy.fields import is_integer

from .. import tables
from . import bert
from .family import HARMLESS, ONLY, Family, Head, Joint, head_sizes

_PADDING, _ROWS = "pad_token_id", "max_position_embeddings"


def _read(entries: Mapping[str, Any]) -> dict[str, Any]:
    padding, rows = entries[_PADDING], entries[_ROWS]
    if not is_integer(padding) or padding < 0 or not is_integer(rows) or rows < padding + 2:
        wanted = f"{_PADDING} must be a token id, and {_ROWS} at least {_PADDING} + 2"
        raise ValueError(f"{wanted}; got {padding!r:.50} and {rows!r:.50}")
    return {"position_offset": padding + 1, "max_positions": rows - padding - 1}


def roberta(name: str, model_type: str, begin: str, vocabulary: int) -> Family:
    """Returns a family of this kind. begin: the start of its class names."""
    return Family(
        name=name,
        model_type=model_type,
        fixed={**bert.FIXED, "position_start": "first_token"},
        unused=bert.UNUSED,
        entries=bert.entries(vocabulary, positions=None, words={"gelu": "gelu_erf", "gelu_python": "gelu_erf"}),
        joints=(
            head_sizes("hidden_size", "num_attention_heads"),
            Joint(
                {_PADDING: 1, _ROWS: 512}, {"position_offset": _PADDING, "max_positions": _ROWS}, _read,
                lambda config, said: {
                    _PADDING: config.position_offset - 1,
                    _ROWS: config.max_positions + config.position_offset,
                },
                "position 0 is the row after the padding id's",
            ),
        ),
        only={**ONLY, "is_decoder": False, "position_embedding_type": "absolute", "embedding_size": None},
        harmless=HARMLESS - {_PADDING},
        prefix="roberta.",
        outside=r"(lm_head|classifier|qa_outputs)\..*",
        classes={
            f"{begin}ForMaskedLM": ("masked_language_head",),
            f"{begin}Model": ("pooler",),
            f"{begin}ForSequenceClassification": ("pooler", "classifier"),
            f"{begin}ForMultipleChoice": ("pooler", "multiple_choice_head"),
            f"{begin}ForTokenClassification": ("token_classifier",),
            f"{begin}ForQuestionAnswering": ("question_answering_head",),
        },
        heads=(
            Head("pooler", r"(pooler|classifier\.dense)\..*", "pooler"),  # one of the two, depending on the class
            Head("masked_language_head", r"lm_head\..*", "masked_language_head"),
            Head("classifier", r"classifier\.(dense|out_proj)\..*", "classes"),
            Head("token_classifier", r"classifier\.(weight|bias)"),
            Head(
                "multiple_choice_head", r"classifier\.(weight|bias)",
                shown=lambda shapes, labels: labels > 1 and shapes.get("classifier.bias") == (1,),
            ),
            Head("question_answering_head", r"qa_outputs\..*"),
        ),
        table=(
            *bert.BODY,
            *tables.dense("pooler.dense", "pooler", "r d", "r"),
            *tables.dense("classifier.dense", "pooler", "r d", "r"),
            *tables.dense("classifier.out_proj", "classifier", "c r", "c"),
            *tables.dense("lm_head.dense", "masked_language_head.hidden", "r d", "r"),
            *tables.within("lm_head.layer_norm", "masked_language_head.norm", tables.NORM),
            *tables.dense("lm_head.decoder", "masked_language_head.logits", "v d", "v"),
        ),
        older={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
        buffers=r"embeddings\.(position_ids|token_type_ids)",
        twins={"lm_head.bias": "lm_head.decoder.bias"},
        padded_by_id=True,
    )  # fmt: skip


FAMILY = roberta("RoBERTa", "roberta", "Roberta", 50265)
XLM_ROBERTA = roberta("XLM-RoBERTa", "xlm-roberta", "XLMRoberta", 30522)  # Conneau et al. 2020
CAMEMBERT = roberta("CamemBERT", "camembert", "Camembert", 30522)  # Martin et al. 2020
