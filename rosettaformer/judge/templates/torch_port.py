"""A port in PyTorch: modules, and a table that maps their parameters.

    rosettaformer check my_port.py       runs every case of these components
    rosettaformer diagnose my_port.py    names the bug and suggests a fix

Replace these modules with your own. They are called with keyword arguments named as below.
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
        # a fully masked query returns zeros
        weights = logits.masked_fill(~attend, float("-inf")).softmax(-1).masked_fill(~attend, 0.0)
        output = self.out_proj((weights @ value).transpose(1, 2).flatten(2))
        return (output, weights) if return_weights else output


framework = "torch"

# The components of this port, each with a function that builds it. Add your own, such as
# "feed_forward", "encoder_layer" or "transformer".
components = {
    "layer_norm": lambda config, dtype: LayerNorm(config.model_width, config.epsilon),
    "multi_head_attention": lambda config, dtype: MultiHeadAttention(config),
}

# The rename table. Each row: end of the canonical name, end of your name, axes of your tensor.
# Axes: d model width, h heads, g key/value heads, k key size, e value size, f feed-forward width,
# v vocabulary; (h k) is one flattened axis. If one tensor holds several parameters, number the
# part: ("query.kernel", "c_attn.weight", "d (0/3 h k)") is the first third of c_attn.weight.
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

# Config fields with a fixed value in your modules; all cases use these values. Without this line,
# all values are tested. CLASSIC disables RoPE, RMS norms, gates, windows, caps and query-key norms.
# To fix more fields: CLASSIC | {"model_width": 12, "heads": 3}.
config = CLASSIC

# The dtypes that your modules support; without this line, also bfloat16 and float16 are tested.
dtypes = ("float64", "float32")

# If your modules' arguments have other names: component -> {your argument: input of the case}. The
# input of a module that adds positions to it is "zeros_btd".
# call = {"feed_forward": {"x": "x_btd"}, "positional_encoding": {"x": "zeros_btd"}}

# If this file holds a whole model: one table per component, and rows of two that rename submodules
# (docs/ports.md of rosettaformer).
# weights = {"encoder_layer": (("self_attention", "attn"), ("feed_forward", "mlp")), "multi_head_attention": (...), ...}
