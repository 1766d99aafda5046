"""BERT from transformers: the pooled token, the classes of a row, the logits of masked tokens."""

from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel
from transformers_attention import ACTIVATIONS, ZEROS, sizes

from rosettaformer.ports import CLASSIC


def native(config):
    return BertConfig(
        vocab_size=config.source_vocabulary,
        hidden_size=config.model_width,
        num_hidden_layers=config.encoder_layers,
        num_attention_heads=config.heads,
        intermediate_size=config.feed_forward_width,
        hidden_act=ACTIVATIONS[config.activation],
        max_position_embeddings=config.max_positions,
        type_vocab_size=config.segments,
        layer_norm_eps=config.epsilon,
        pad_token_id=None,
        tie_word_embeddings=config.tie_logits,
        num_labels=config.classes,
        attn_implementation=ZEROS,
    )


def given(source_mask_bs, segment_bs):
    mask = None if source_mask_bs is None else source_mask_bs.long()
    return {"attention_mask": mask, "token_type_ids": segment_bs}


class Pool(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.bert = BertModel(config)

    def forward(self, source, source_mask_bs=None, segment_bs=None):
        return self.bert(source, **given(source_mask_bs, segment_bs)).pooler_output


class Classify(BertForSequenceClassification):
    def forward(self, source, source_mask_bs=None, segment_bs=None):
        return super().forward(source, **given(source_mask_bs, segment_bs)).logits


class MaskedLanguageLogits(BertForMaskedLM):
    def forward(self, source, source_mask_bs=None, segment_bs=None):
        return super().forward(source, **given(source_mask_bs, segment_bs)).logits


framework = "torch"
dtypes = ("float64", "float32")
components = {
    "pool": lambda config, dtype: Pool(native(config)),
    "classify": lambda config, dtype: Classify(native(config)),
    "masked_language_logits": lambda config, dtype: MaskedLanguageLogits(native(config)),
}
config = CLASSIC | sizes | {
    "positions": "learned", "position_offset": 0, "position_start": "row", "pooler_activation": "tanh",
    "embedding_norm": True, "norm_placement": "post", "final_norm": False, "scale_embedding": False,
    "attention_bias": True, "output_bias": True, "padding_id": None,
}  # fmt: skip

EMBEDDINGS = {
    "source_embedding": "word_embeddings",
    "source_position_embedding": "position_embeddings",
    "source_segment_embedding": "token_type_embeddings",
}
AXES = {"source_embedding": "v d", "source_position_embedding": "p d", "source_segment_embedding": "a d"}
NORMS = {"self_attention_norm": "attention.output.LayerNorm", "feed_forward_norm": "output.LayerNorm"}
DENSE = (
    ("self_attention.query", "attention.self.query", "(h k) d"),
    ("self_attention.key", "attention.self.key", "(g k) d"),
    ("self_attention.value", "attention.self.value", "(g e) d"),
    ("self_attention.output", "attention.output.dense", "d (h e)"),
    ("feed_forward.hidden", "intermediate.dense", "f d"),
    ("feed_forward.output", "output.dense", "d f"),
)
LAYERS = [(f"encoder.layers.{index}", f"bert.encoder.layer.{index}") for index in range(2)]


def dense(theirs, ours, axes):
    bias = axes.removesuffix(" d") if axes.endswith(" d") else axes.split()[0]
    return (f"{theirs}.kernel", f"{ours}.weight", axes), (f"{theirs}.bias", f"{ours}.bias", bias)


def norm(theirs, ours):
    return (f"{theirs}.scale", f"{ours}.weight", "d"), (f"{theirs}.offset", f"{ours}.bias", "d")


weights = (
    *((f"{theirs}.table", f"bert.embeddings.{ours}.weight", AXES[theirs]) for theirs, ours in EMBEDDINGS.items()),
    *norm("source_embedding_norm", "bert.embeddings.LayerNorm"),
    *(row for theirs, ours in LAYERS for name, own in NORMS.items() for row in norm(f"{theirs}.{name}", f"{ours}.{own}")),
    *(row for theirs, ours in LAYERS for name, own, axes in DENSE for row in dense(f"{theirs}.{name}", f"{ours}.{own}", axes)),
    *dense("pooler", "bert.pooler.dense", "r d"),
    *dense("classifier", "classifier", "c r"),
    *dense("masked_language_head.hidden", "cls.predictions.transform.dense", "r d"),
    *norm("masked_language_head.norm", "cls.predictions.transform.LayerNorm"),
    *dense("masked_language_head.logits", "cls.predictions.decoder", "v d"),
)
module_paths = (
    *((theirs, f"bert.embeddings.{ours}") for theirs, ours in EMBEDDINGS.items()),
    ("source_embedding_norm", "bert.embeddings.LayerNorm"),
    ("encoder", "bert.encoder"),
    *LAYERS,
    *((f"{theirs}.{name}", f"{ours}.{own}") for theirs, ours in LAYERS for name, own in NORMS.items()),
    ("pooler", "bert.pooler"),
    ("masked_language_head", "cls.predictions"),
    ("masked_language_head.norm", "cls.predictions.transform.LayerNorm"),
    ("masked_language_head.logits", "cls.predictions.decoder"),
)
