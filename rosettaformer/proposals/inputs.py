"""The inputs of the components that a port is proposed for."""

from ..conformance.reference.components import model_of
from .vocabulary import CROSS

__all__ = ["INPUTS", "OF_MEMORY", "is_model"]

# component -> what it computes with, and its masks, in the order of usual arguments
INPUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "layer_norm": (("x_btd",), ()),
    "feed_forward": (("x_btd",), ()),
    "logits": (("x_btd",), ()),
    "embedding": (("token",), ()),
    "positional_encoding": (("zeros_btd",), ()),
    "multi_head_attention": (("query_btd", "memory_bsd", "memory_bsd"), ("mask_bhts",)),
    "encoder_layer": (("x_btd",), ("mask_bhts",)),
    "decoder_layer": (("x_btd", "memory_bsd"), ("self_mask_bhts", "cross_mask_bhts")),
    "encoder": (("x_bsd",), ("mask_bhts",)),
    "decoder": (("x_btd", "memory_bsd"), ("self_mask_bhts", "cross_mask_bhts")),
    "transformer": (("source", "target"), ("source_mask_bs", "target_mask_bt")),
    **dict.fromkeys(("pool", "classify", "masked_language_logits"), (("source",), ("source_mask_bs",))),
}
OF_MEMORY = CROSS - {"multihead"} | {"e", "encoding", "kv", "hidden"}


def is_model(component: str) -> bool:
    """Whether it is a whole model: from token ids."""
    return model_of(component) == "transformer"
