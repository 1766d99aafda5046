"""Shared by ports of transformers models: the library's attention, changed to give zeros for a query that may attend to nothing."""

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

__all__ = ["ACTIVATIONS", "ZEROS", "sizes"]

ACTIVATIONS = {
    "relu": "relu", "relu_squared": "relu2", "gelu_erf": "gelu", "gelu_tanh": "gelu_new", "gelu_sigmoid": "quick_gelu", "silu": "silu",
}  # fmt: skip
ZEROS = "zeros"
sizes = {"model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4}


def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **others):
    logits = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        hidden = attention_mask[..., : key.shape[-2]] < 0
        logits = logits.masked_fill(hidden, float("-inf"))
    weights = logits.softmax(-1).nan_to_num()
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(ZEROS, attention)
AttentionMaskInterface.register(ZEROS, eager_mask)
torch.set_num_threads(1)
