"""A tutorial-style Transformer in torch with three bugs that its author has not noticed.

`corrected=True` builds the same model without them; `handwritten_torch_correct.py` is that port.
"""

import math

import torch
from torch import nn

from rosettaformer.ports import CLASSIC, NotCovered


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len, corrected):
        super().__init__()
        column = torch.arange(d_model, dtype=torch.float64)
        # bug (PE2): every column has its own exponent, where a sine and its cosine share one
        exponent = 2 * (column // 2) / d_model if corrected else 2 * column / d_model
        angle = torch.arange(max_len, dtype=torch.float64)[:, None] / 10000**exponent
        pe = torch.zeros(max_len, d_model, dtype=torch.float64)
        pe[:, 0::2] = torch.sin(angle[:, 0::2])
        pe[:, 1::2] = torch.cos(angle[:, 1::2])
        self.register_buffer("pe", pe)

    def forward(self, position):
        return self.pe[position]


class Norm(nn.Module):
    def __init__(self, d_model, eps, corrected):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model))
        self.eps, self.corrected = eps, corrected

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        if self.corrected:
            return self.gamma * (x - mean) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + self.eps) + self.beta
        # bug (NRM1): torch's std is the unbiased one, and epsilon is outside the root
        return self.gamma * (x - mean) / (x.std(-1, keepdim=True) + self.eps) + self.beta


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_head, d_k, d_v):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_q = nn.Linear(d_model, n_head * d_k)
        self.w_k = nn.Linear(d_model, n_head * d_k)
        self.w_v = nn.Linear(d_model, n_head * d_v)
        self.fc = nn.Linear(n_head * d_v, d_model)

    def forward(self, x, context, mask):
        b, t, s = x.size(0), x.size(1), context.size(1)
        q = self.w_q(x).view(b, t, self.n_head, self.d_k).transpose(1, 2)
        k = self.w_k(context).view(b, s, self.n_head, self.d_k).transpose(1, 2)
        v = self.w_v(context).view(b, s, self.n_head, self.d_v).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        scores = scores.masked_fill(mask == 0, -1e9)
        out = torch.softmax(scores, dim=-1) @ v
        return self.fc(out.transpose(1, 2).reshape(b, t, self.n_head * self.d_v))


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.fc1 = nn.Linear(d_model, d_ff)
        self.fc2 = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class EncoderBlock(nn.Module):
    def __init__(self, c, corrected):
        super().__init__()
        self.attention = MultiHeadAttention(c.model_width, c.heads, c.key_size, c.value_size)
        self.ffn = FeedForward(c.model_width, c.feed_forward_width)
        self.norm1, self.norm2 = (Norm(c.model_width, c.epsilon, corrected) for _ in range(2))
        self.dropout = nn.Dropout(c.dropout_rate)

    def forward(self, x, mask):
        x = self.norm1(x + self.dropout(self.attention(x, x, mask)))
        return self.norm2(x + self.dropout(self.ffn(x)))


class DecoderBlock(nn.Module):
    def __init__(self, c, corrected):
        super().__init__()
        self.self_attention = MultiHeadAttention(c.model_width, c.heads, c.key_size, c.value_size)
        self.enc_attention = MultiHeadAttention(c.model_width, c.heads, c.key_size, c.value_size)
        self.ffn = FeedForward(c.model_width, c.feed_forward_width)
        self.norm1, self.norm2, self.norm3 = (Norm(c.model_width, c.epsilon, corrected) for _ in range(3))
        self.dropout = nn.Dropout(c.dropout_rate)
        self.corrected = corrected

    def forward(self, x, memory, tgt_mask, src_mask):
        h = self.norm1(x + self.dropout(self.self_attention(x, x, tgt_mask)))
        # bug (MHA11): the query is the block's input, not the output of the self-attention
        query = h if self.corrected else x
        h = self.norm2(h + self.dropout(self.enc_attention(query, memory, src_mask)))
        return self.norm3(h + self.dropout(self.ffn(h)))


class Transformer(nn.Module):
    def __init__(self, c, corrected=False, max_len=512):
        super().__init__()
        self.pad, self.d_model = c.padding_id, c.model_width
        self.src_embed = nn.Embedding(c.source_vocabulary, c.model_width)
        self.tgt_embed = nn.Embedding(c.target_vocabulary, c.model_width)
        self.pos = PositionalEncoding(c.model_width, max_len, corrected)
        self.encoder_blocks = nn.ModuleList(EncoderBlock(c, corrected) for _ in range(c.encoder_layers))
        self.decoder_blocks = nn.ModuleList(DecoderBlock(c, corrected) for _ in range(c.decoder_layers))
        self.generator = nn.Linear(c.model_width, c.target_vocabulary)
        self.dropout = nn.Dropout(c.dropout_rate)

    def embed(self, table, tokens):
        position = torch.arange(tokens.size(1), device=tokens.device).expand(tokens.shape)
        return self.dropout(table(tokens) * math.sqrt(self.d_model) + self.pos(position))

    def forward(self, source, target):
        src_mask = (source != self.pad)[:, None, None, :]
        causal = torch.ones(target.size(1), target.size(1), dtype=torch.bool, device=target.device).tril()
        tgt_mask = (target != self.pad)[:, None, None, :] & causal
        x = self.embed(self.src_embed, source)
        for block in self.encoder_blocks:
            x = block(x, src_mask)
        y = self.embed(self.tgt_embed, target)
        for block in self.decoder_blocks:
            y = block(y, x, tgt_mask, src_mask)
        return self.generator(y)


# --- the port -------------------------------------------------------------------------------------------------------------


class Model(Transformer):
    def forward(self, source, target, source_mask_bs=None, target_mask_bt=None):
        if source_mask_bs is not None or target_mask_bt is not None:
            raise NotCovered("the masks are made from the ids")
        if source.is_floating_point():
            raise NotCovered("the embedding takes ids, not rows of weights")
        if (source[:, 0] == self.pad).any() or (target[:, 0] == self.pad).any():
            raise NotCovered("batches are padded on the right")
        return super().forward(source, target)


framework = "torch"
dtypes = ("float64", "float32")
components = {"transformer": lambda config, dtype: Model(config)}

# fixed by the model: its dialect, and assumptions of its code (an even width, no grouped heads)
config = CLASSIC | {
    "encoder_layers": 2, "model_width": 12, "heads": 3, "key_value_heads": 3, "positions": "sinusoidal",
    "max_positions": 0, "position_start": "first_token", "segments": 0, "embedding_norm": False,
    "activation": "relu", "norm_placement": "post", "final_norm": False, "scale_embedding": True,
    "share_embeddings": False, "tie_logits": False, "attention_bias": True, "output_bias": True,
    "padding_id": 2,
}  # fmt: skip

MAX_LAYERS = 2
# our component -> the model's module, in an encoder block and in a decoder block
ENCODER = {"self_attention": "attention", "self_attention_norm": "norm1", "feed_forward": "ffn", "feed_forward_norm": "norm2"}
DECODER = {
    "self_attention": "self_attention", "self_attention_norm": "norm1", "cross_attention": "enc_attention",
    "cross_attention_norm": "norm2", "feed_forward": "ffn", "feed_forward_norm": "norm3",
}  # fmt: skip


def layer_paths():
    for layer in range(MAX_LAYERS):
        for side, names in (("encoder", ENCODER), ("decoder", DECODER)):
            yield f"{side}.layers.{layer}", f"{side}_blocks.{layer}"
            for theirs, ours in names.items():
                yield f"{side}.layers.{layer}.{theirs}", f"{side}_blocks.{layer}.{ours}"


def layer_weights():
    for theirs, ours in layer_paths():
        if theirs.endswith("attention"):
            for name, linear, axes in (("query", "w_q", "h k"), ("key", "w_k", "g k"), ("value", "w_v", "g e")):
                yield f"{theirs}.{name}.kernel", f"{ours}.{linear}.weight", f"({axes}) d"
                yield f"{theirs}.{name}.bias", f"{ours}.{linear}.bias", f"({axes})"
            yield f"{theirs}.output.kernel", f"{ours}.fc.weight", "d (h e)"
            yield f"{theirs}.output.bias", f"{ours}.fc.bias", "d"
        elif theirs.endswith("norm"):
            yield f"{theirs}.scale", f"{ours}.gamma", "d"
            yield f"{theirs}.offset", f"{ours}.beta", "d"
        elif theirs.endswith("feed_forward"):
            yield f"{theirs}.hidden.kernel", f"{ours}.fc1.weight", "f d"
            yield f"{theirs}.hidden.bias", f"{ours}.fc1.bias", "f"
            yield f"{theirs}.output.kernel", f"{ours}.fc2.weight", "d f"
            yield f"{theirs}.output.bias", f"{ours}.fc2.bias", "d"


weights = (
    ("source_embedding.table", "src_embed.weight", "v d"),
    ("target_embedding.table", "tgt_embed.weight", "v d"),
    ("logits.kernel", "generator.weight", "v d"),
    ("logits.bias", "generator.bias", "v"),
    *layer_weights(),
)
module_paths = (("encoder.positional_encoding", "pos"), ("decoder.positional_encoding", "pos"), ("logits", "generator"), *layer_paths())
