"""A port in PyTorch: modules, and a table that says where their parameters are.

    rosettaformer check my_port.py       runs every case of these components through it
    rosettaformer diagnose my_port.py    says what is wrong with it, and how to fix it

Put your own modules in place of what is here. They are called with the arguments that the cases have, by name.
"""

import torch
from torch import nn

from rosettaformer.ports import CLASSIC


class LayerNorm(nn.LayerNorm):
    def forward(self, x_btd):
        return super().forward(x_btd)


class MultiHeadAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.groups = config.heads, config.key_value_heads
        self.q_proj = nn.Linear(config.model_width, config.heads * config.key_size, config.query_key_value_bias)
        self.k_proj = nn.Linear(config.model_width, config.key_value_heads * config.key_size, config.query_key_value_bias)
        self.v_proj = nn.Linear(config.model_width, config.key_value_heads * config.value_size, config.query_key_value_bias)
        self.out_proj = nn.Linear(config.heads * config.value_size, config.model_width, config.attention_output_bias)

    def forward(self, query_btd, memory_bsd, mask_bhts=None, causal=False, return_weights=False):
        query = self.q_proj(query_btd).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key = self.k_proj(memory_bsd).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        value = self.v_proj(memory_bsd).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        key, value = (x.repeat_interleave(self.heads // self.groups, dim=1) for x in (key, value))
        logits = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        attend = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device)
        if causal:
            attend = attend.tril(logits.shape[-1] - logits.shape[-2])
        if mask_bhts is not None:
            attend = attend & mask_bhts  # True = may attend
        # A query that may attend to nothing gives zeros.
        weights = logits.masked_fill(~attend, float("-inf")).softmax(-1).masked_fill(~attend, 0.0)
        output = self.out_proj((weights @ value).transpose(1, 2).flatten(2))
        return (output, weights) if return_weights else output


framework = "torch"

# What the port covers: component -> how it is built. Add yours: "feed_forward", "encoder_layer", "transformer", ...
components = {
    "layer_norm": lambda config, dtype: LayerNorm(config.model_width, config.epsilon),
    "multi_head_attention": lambda config, dtype: MultiHeadAttention(config),
}

# The rename table: end of the canonical name, end of the module's own name, axes of the module's tensor. The letters: d model width,
# h heads, g key/value heads, k key size, e value size, f feed-forward width, v vocabulary; brackets join axes into one. Where one tensor
# holds several, a row says which part it is of how many: ("query.kernel", "c_attn.weight", "d (0/3 h k)").
weights = (
    ("scale", "weight", "d"),
    ("offset", "bias", "d"),
    ("query.kernel", "q_proj.weight", "(h k) d"),
    ("query.bias", "q_proj.bias", "(h k)"),
    ("key.kernel", "k_proj.weight", "(g k) d"),
    ("key.bias", "k_proj.bias", "(g k)"),
    ("value.kernel", "v_proj.weight", "(g e) d"),
    ("value.bias", "v_proj.bias", "(g e)"),
    ("output.kernel", "out_proj.weight", "d (h e)"),
    ("output.bias", "out_proj.bias", "d"),
)

# Config fields that your modules fix: the cases are made with these values. Without the line every value is checked.
# CLASSIC leaves out RoPE, RMS norms, gates, windows, caps and query-key norms; add more, such as CLASSIC | {"model_width": 12, "heads": 3}.
config = CLASSIC

# The dtypes that your modules support. Without the line all four are checked: float64, float32, bfloat16, float16.
dtypes = ("float64", "float32")

# Where your modules have other arguments: component -> {your argument: the case's input}. Positions that are added inside: "zeros_btd".
# call = {"feed_forward": {"x": "x_btd"}, "positional_encoding": {"x": "zeros_btd"}}

# Where a whole model is in the file, weights is {component: table}, and rows of two rename its parts: docs/ports.md of rosettaformer.
# weights = {"encoder_layer": (("self_attention", "attn"), ("feed_forward", "mlp")), "multi_head_attention": (...), ...}
