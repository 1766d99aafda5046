"""Transformers' models with one difference each from what they are."""

import published_torch
import torch
from transformers.models.llama import modeling_llama


def llama_epsilon():
    return published_torch.llama(rms_norm_eps=1e-3)


def llama_activation():
    return published_torch.llama(hidden_act="gelu")


def llama_scale():
    model = published_torch.llama()
    for layer in model.layers:
        layer.self_attn.scaling = 1 / 6
    return model


def llama_rotary():
    """The frequencies of neighbours, turned as halves."""
    model = published_torch.llama()
    rotation = model.rotary_emb.forward

    def forward(x, position_ids):
        return tuple(part[..., : part.shape[-1] // 2].repeat_interleave(2, -1) for part in rotation(x, position_ids))

    model.rotary_emb.forward = forward
    return model


def llama_gate():
    """The activation is applied to the other of the two."""
    model = published_torch.llama()
    for layer in model.layers:
        mlp = layer.mlp
        mlp.forward = lambda x, mlp=mlp: mlp.down_proj(mlp.gate_proj(x) * mlp.act_fn(mlp.up_proj(x)))
    return model


def llama_groups():
    """Key heads are tiled, not repeated."""
    model = published_torch.llama()
    for layer in model.layers:
        attend = layer.self_attn.forward

        def forward(*args, attend=attend, **kwargs):
            repeat, modeling_llama.repeat_kv = modeling_llama.repeat_kv, lambda x, count: x.repeat(1, count, 1, 1)
            try:
                return attend(*args, **kwargs)
            finally:
                modeling_llama.repeat_kv = repeat

        layer.self_attn.forward = forward
    return model


def bert_activation():
    return published_torch.bert(hidden_act="gelu")


def bert_epsilon():
    return published_torch.bert(layer_norm_eps=1e-5)


def gpt2_scale():
    return published_torch.gpt2(scale_attn_weights=False)


def gpt2_bias():
    model = published_torch.gpt2()
    last = model.h[0].mlp.c_proj
    last.forward = lambda x: x @ last.weight
    return model


def gemma_one():
    """The scale is not 1 + the parameter."""
    model = published_torch.gemma()
    for layer in model.layers:
        norm = layer.post_attention_layernorm
        norm.forward = lambda x, norm=norm: norm._norm(x) * norm.weight
    return model


def gemma_activation():
    model = published_torch.gemma()
    for layer in model.layers:
        layer.mlp.act_fn = torch.nn.GELU()
    return model
