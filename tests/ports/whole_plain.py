"""A port of a whole model: a decoder as Qwen 3's in plain PyTorch, which reads config.json and safetensors itself."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.functional import linear, silu

dtypes = ("float64", "float32", "bfloat16")


def rms_norm(scale, x, epsilon):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return scale * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def rotated(x_bhtk, angle_btj):  # pairs of halves
    first, second = x_bhtk.to(angle_btj.dtype).chunk(2, dim=-1)
    cosine, sine = angle_btj.cos()[:, None], angle_btj.sin()[:, None]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x_bhtk.dtype)


def load(folder):
    said = json.loads(Path(folder, "config.json").read_text())
    weights = load_file(Path(folder, "model.safetensors"))
    heads, groups, size = said["num_attention_heads"], said["num_key_value_heads"], said["head_dim"]
    epsilon = said["rms_norm_eps"]
    table = weights["model.embed_tokens.weight"]
    wide = torch.promote_types(table.dtype, torch.float32)
    frequency_j = said["rope_parameters"]["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)

    def attention(name, x_btd, angle_btj, hidden_bhts):
        def projected(part, count):
            return linear(x_btd, weights[f"{name}.{part}_proj.weight"]).unflatten(-1, (count, size))

        query, key = (
            rotated(rms_norm(weights[f"{name}.{part}_norm.weight"], projected(part, count), epsilon).transpose(1, 2), angle_btj)
            for part, count in (("q", heads), ("k", groups))
        )
        value = projected("v", groups).transpose(1, 2)
        key, value = (part.repeat_interleave(heads // groups, dim=1) for part in (key, value))
        score = (query @ key.transpose(2, 3) * size**-0.5).to(wide).masked_fill(hidden_bhts, -torch.inf)
        weight = score.softmax(-1).nan_to_num().to(x_btd.dtype)
        return linear((weight @ value).transpose(1, 2).flatten(2), weights[f"{name}.o_proj.weight"])

    def feed_forward(name, x_btd):
        gate, up = (linear(x_btd, weights[f"{name}.{part}_proj.weight"]) for part in ("gate", "up"))
        return linear(silu(gate) * up, weights[f"{name}.down_proj.weight"])

    @torch.no_grad()
    def logits(token_bt, mask_bt):
        token_bt, mask_bt = torch.from_numpy(token_bt), torch.from_numpy(mask_bt)
        length = token_bt.shape[1]
        position_bt = (mask_bt.cumsum(1) - 1).clamp(min=0)
        angle_btj = (position_bt[..., None].to(torch.float64) * frequency_j).to(wide)
        hidden_bhts = ~(torch.ones(length, length, dtype=torch.bool).tril() & mask_bt[:, None, None])
        x_btd = table[token_bt]
        for layer in range(said["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            normed = rms_norm(weights[f"{name}.input_layernorm.weight"], x_btd, epsilon)
            x_btd = x_btd + attention(f"{name}.self_attn", normed, angle_btj, hidden_bhts)
            normed = rms_norm(weights[f"{name}.post_attention_layernorm.weight"], x_btd, epsilon)
            x_btd = x_btd + feed_forward(f"{name}.mlp", normed)
        head = table if said["tie_word_embeddings"] else weights["lm_head.weight"]
        return linear(rms_norm(weights["model.norm.weight"], x_btd, epsilon), head)

    return logits
