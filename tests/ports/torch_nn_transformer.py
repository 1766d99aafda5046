"""PyTorch's own layers: the whole `torch.nn.Transformer` with embeddings and a head, and its layers."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from rosettaformer.ports import CLASSIC, NotCovered

framework = "torch"
dtypes = ("float64", "float32")

# torch splits the width among the heads; its layers have every bias or none; nn.Transformer always ends in norms
config = CLASSIC | {
    "encoder_layers": 2, "model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4,
    "final_norm": True, "share_embeddings": False, "tie_logits": False, "attention_bias": True, "segments": 0,
    "embedding_norm": False,
}  # fmt: skip

ACTIVATIONS = {"relu": F.relu, "gelu_erf": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}

# The query, key and value projections are one parameter in torch; the table of weights below names its parts.
for part, name in enumerate(("query", "key", "value")):
    setattr(nn.MultiheadAttention, f"{name}_weight", property(lambda self, part=part: self.in_proj_weight.chunk(3)[part]))
    setattr(nn.MultiheadAttention, f"{name}_bias", property(lambda self, part=part: self.in_proj_bias.chunk(3)[part]))


def hidden(mask_bhts):
    """Returns torch's key_padding_mask, True = ignore, for a mask that is the same for every head and query."""
    return None if mask_bhts is None else ~mask_bhts[:, 0, 0]


def square_causal(x):
    """Returns torch's attn_mask of a causal self-attention, True = ignore."""
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)


def layer_options(config):
    return {
        "d_model": config.model_width,
        "nhead": config.heads,
        "dim_feedforward": config.feed_forward_width,
        "dropout": config.dropout_rate,
        "activation": ACTIVATIONS[config.activation],
        "layer_norm_eps": config.epsilon,
        "batch_first": True,
        "norm_first": config.norm_placement == "pre",
    }


def decoder_layer_options(config):
    if not config.cross_attention:
        raise NotCovered("torch's decoder layers always attend to a memory")
    return layer_options(config)


class EncoderLayer(nn.TransformerEncoderLayer):
    def forward(self, x_btd, mask_bhts=None):
        return super().forward(x_btd, src_key_padding_mask=hidden(mask_bhts))


class DecoderLayer(nn.TransformerDecoderLayer):
    def forward(self, x_btd, memory_bsd, self_mask_bhts=None, cross_mask_bhts=None):
        return super().forward(
            x_btd,
            memory_bsd,
            tgt_mask=square_causal(x_btd),
            tgt_key_padding_mask=hidden(self_mask_bhts),
            memory_key_padding_mask=hidden(cross_mask_bhts),
        )


class Model(nn.Transformer):
    """nn.Transformer between embeddings with sinusoidal positions and a linear head."""

    def __init__(self, config):
        if config.positions != "sinusoidal":
            raise NotCovered("the model has sinusoidal positions")
        super().__init__(
            num_encoder_layers=config.encoder_layers, num_decoder_layers=config.decoder_layers, **decoder_layer_options(config)
        )
        self.source_table = nn.Embedding(config.source_vocabulary, config.model_width)
        self.target_table = nn.Embedding(config.target_vocabulary, config.model_width)
        self.head = nn.Linear(config.model_width, config.target_vocabulary, bias=config.output_bias)
        self.padding_id = config.padding_id
        self.scale = math.sqrt(config.model_width) if config.scale_embedding else 1.0

    def embed(self, table, token):
        if token.is_floating_point():
            raise NotCovered("nn.Embedding takes ids, not rows of weights")
        exponent = torch.arange(0, self.d_model, 2, dtype=torch.float64) / self.d_model
        angle = torch.arange(token.shape[1], dtype=torch.float64)[:, None] / 10000**exponent
        position = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
        return table(token) * self.scale + position.to(table.weight)

    def ignored(self, token, mask):
        if mask is not None:
            return ~mask
        return None if self.padding_id is None else token == self.padding_id

    def forward(self, source, target, source_mask_bs=None, target_mask_bt=None):
        source_ignored, target_ignored = self.ignored(source, source_mask_bs), self.ignored(target, target_mask_bt)
        x = super().forward(
            self.embed(self.source_table, source),
            self.embed(self.target_table, target),
            tgt_mask=square_causal(target),
            src_key_padding_mask=source_ignored,
            tgt_key_padding_mask=target_ignored,
            memory_key_padding_mask=source_ignored,
        )
        return self.head(x)


components = {
    "encoder_layer": lambda config, dtype: EncoderLayer(**layer_options(config)),
    "decoder_layer": lambda config, dtype: DecoderLayer(**decoder_layer_options(config)),
    "transformer": lambda config, dtype: Model(config),
}

ATTENTION = (
    ("query", "query_", "(h k) d", "(h k)"), ("key", "key_", "(g k) d", "(g k)"),
    ("value", "value_", "(g e) d", "(g e)"), ("output", "out_proj.", "d (h e)", "d"),
)  # fmt: skip
FEED_FORWARD = (
    ("feed_forward.hidden.kernel", "linear1.weight", "f d"),
    ("feed_forward.hidden.bias", "linear1.bias", "f"),
    ("feed_forward.output.kernel", "linear2.weight", "d f"),
    ("feed_forward.output.bias", "linear2.bias", "d"),
)
weights = {
    "multi_head_attention": (
        *((f"{name}.kernel", f"{own}weight", axes) for name, own, axes, _ in ATTENTION),
        *((f"{name}.bias", f"{own}bias", axes) for name, own, _, axes in ATTENTION),
    ),
    "layer_norm": (("scale", "weight", "d"), ("offset", "bias", "d")),
    "encoder_layer": (
        ("self_attention", "self_attn"), ("self_attention_norm", "norm1"),
        ("feed_forward_norm", "norm2"), *FEED_FORWARD,
    ),
    "decoder_layer": (
        ("self_attention", "self_attn"), ("self_attention_norm", "norm1"),
        ("cross_attention", "multihead_attn"), ("cross_attention_norm", "norm2"),
        ("feed_forward_norm", "norm3"), *FEED_FORWARD,
    ),
    "encoder": (("final_norm", "norm"),),
    "decoder": (("final_norm", "norm"),),
    "transformer": (
        ("source_embedding.table", "source_table.weight", "v d"),
        ("target_embedding.table", "target_table.weight", "v d"),
        ("logits", "head"), ("logits.kernel", "head.weight", "v d"), ("logits.bias", "head.bias", "v"),
    ),
}  # fmt: skip
