"""A port of a whole model: a Qwen 3 decoder, a custom class in plain PyTorch with its own parameter names. docs/like.md
quotes what follows the class."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import silu

dtypes = ("float64", "float32", "bfloat16")


def in_float(x):  # or in float64
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rotated(x_bhtk, angle_btj):  # pairs of halves
    first, second = x_bhtk.to(angle_btj.dtype).chunk(2, dim=-1)
    cosine, sine = angle_btj.cos()[:, None], angle_btj.sin()[:, None]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x_bhtk.dtype)


class Norm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.scale, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x):
        wide = in_float(x)
        return self.scale * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)).to(x.dtype)


class Block(nn.Module):
    def __init__(self, width, hidden, heads, groups, size, epsilon):
        super().__init__()
        self.size = size
        self.before, self.between = Norm(width, epsilon), Norm(width, epsilon)
        self.query, self.key, self.value = (nn.Linear(width, count * size, bias=False) for count in (heads, groups, groups))
        self.query_norm, self.key_norm = Norm(size, epsilon), Norm(size, epsilon)
        self.out = nn.Linear(heads * size, width, bias=False)
        self.gate, self.up, self.down = (nn.Linear(*pair, bias=False) for pair in ((width, hidden), (width, hidden), (hidden, width)))

    def attention(self, x_btd, angle_btj, hidden_bhts):
        query, key, value = (part(x_btd).unflatten(-1, (-1, self.size)) for part in (self.query, self.key, self.value))
        query, key = (rotated(x.transpose(1, 2), angle_btj) for x in (self.query_norm(query), self.key_norm(key)))
        key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value.transpose(1, 2)))
        score = in_float(query @ key.transpose(2, 3) * self.size**-0.5).masked_fill(hidden_bhts, -torch.inf)
        return self.out((score.softmax(-1).nan_to_num().to(x_btd.dtype) @ value).transpose(1, 2).flatten(2))

    def forward(self, x_btd, angle_btj, hidden_bhts):
        x_btd = x_btd + self.attention(self.before(x_btd), angle_btj, hidden_bhts)
        y_btd = self.between(x_btd)
        return x_btd + self.down(silu(self.gate(y_btd)) * self.up(y_btd))


class Decoder(nn.Module):
    def __init__(self, vocabulary, width, layers, theta, size, epsilon, **sizes):
        super().__init__()
        self.theta, self.size = theta, size
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, size=size, epsilon=epsilon, **sizes) for _ in range(layers))
        self.norm = Norm(width, epsilon)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, token_bt, mask_bt):
        length = token_bt.shape[1]
        x_btd = self.embedding(token_bt)
        frequency_j = self.theta ** (-torch.arange(0, self.size, 2, dtype=torch.float64) / self.size)
        position_bt = (mask_bt.cumsum(1) - 1).clamp(min=0)
        angle_btj = (position_bt[..., None] * frequency_j).to(in_float(x_btd).dtype)
        hidden_bhts = ~(torch.ones(length, length, dtype=torch.bool).tril() & mask_bt[:, None, None])
        for block in self.blocks:
            x_btd = block(x_btd, angle_btj, hidden_bhts)
        return self.head(self.norm(x_btd))


RENAMED = {
    "model.embed_tokens": "embedding",
    "model.layers": "blocks",
    "input_layernorm.weight": "before.scale",
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "out",
    "self_attn.q_norm.weight": "query_norm.scale",
    "self_attn.k_norm.weight": "key_norm.scale",
    "post_attention_layernorm.weight": "between.scale",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
    "model.norm.weight": "norm.scale",
    "lm_head": "head",
}


def renamed(name):
    for theirs, own in RENAMED.items():
        name = name.replace(theirs, own)
    return name


def load(folder):
    said = json.loads(Path(folder, "config.json").read_text())
    model = Decoder(
        vocabulary=said["vocab_size"], width=said["hidden_size"], layers=said["num_hidden_layers"],
        hidden=said["intermediate_size"], heads=said["num_attention_heads"],
        groups=said["num_key_value_heads"], size=said["head_dim"],
        theta=said["rope_parameters"]["rope_theta"], epsilon=said["rms_norm_eps"],
    )  # fmt: skip
    tensors = load_file(Path(folder, "model.safetensors"))
    tensors = {renamed(name): tensor for name, tensor in tensors.items()}
    if said["tie_word_embeddings"]:
        tensors["head.weight"] = tensors["embedding.weight"]
    model.load_state_dict(tensors, strict=True, assign=True)  # assign: in the folder's dtype
    return lambda token_bt, mask_bt: model(torch.from_numpy(token_bt), torch.from_numpy(mask_bt))
