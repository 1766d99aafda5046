"""The inputs of the components that a port is proposed for."""

from ..expectation.components import model_of
from .vocabulary import CROSS

# component -> its inputs, and its masks, in the usual order of arguments
INPUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "layer_norm": (("x_btd",), ()),
    "rms_norm": (("x_btd",), ()),
    "feed_forward": (("x_btd",), ()),
    "logits": (("x_btd",), ()),
    "embedding": (("token",), ()),
    "positional_encoding": (("zeros_btd",), ()),
    "multi_head_attention": (("query_btd", "memory_bsd", "memory_bsd"), ("mask_bhts",)),
    "self_attention": (("x_btd",), ("mask_bhts",)),
    "self_attention_sublayer": (("x_btd",), ("mask_bhts",)),
    "cross_attention_sublayer": (("x_btd", "memory_bsd", "memory_bsd"), ("mask_bhts",)),
    "feed_forward_sublayer": (("x_btd",), ()),
    "encoder_layer": (("x_btd",), ("mask_bhts",)),
    "decoder_layer": (("x_btd", "memory_bsd"), ("self_mask_bhts", "cross_mask_bhts")),
    "encoder": (("x_bsd",), ("mask_bhts",)),
    "decoder": (("x_btd", "memory_bsd"), ("self_mask_bhts", "cross_mask_bhts")),
    "token_encoder": (("source",), ("source_mask_bs",)),
    "token_decoder": (("target", "memory_bsd"), ("source_mask_bs", "target_mask_bt")),
    "transformer": (("source", "target"), ("source_mask_bs", "target_mask_bt")),
    **dict.fromkeys(("pool", "classify", "masked_language_logits"), (("source",), ("source_mask_bs",))),
}
OF_MEMORY = CROSS - {"multihead"} | {"e", "encoding", "kv", "hidden"}


OTHER_DIVISION = '"Another division of the model"'  # the section of docs/ports.md
# component of queries and memory -> the same with one sequence
OF_ITSELF = {"multi_head_attention": "self_attention", "cross_attention_sublayer": "self_attention_sublayer"}


def is_model(component: str) -> bool:
    """Whether the component is a whole model, or half of one: whether it takes token ids."""
    return component in ("token_encoder", "token_decoder") or model_of(component) == "transformer"


def has_norms(component: str) -> bool:
    """Whether it contains norms."""
    return component.endswith(("_layer", "_sublayer", "encoder", "decoder")) or is_model(component)


def is_attention(component: str) -> bool:
    """Whether it contains an attention."""
    return "attention" in component or (has_norms(component) and not component.startswith("feed_forward"))


def is_fed_forward(component: str) -> bool:
    """Whether it contains a feed-forward network."""
    return component.startswith("feed_forward") or (has_norms(component) and "attention" not in component)
