"""Transformers' models with one difference each from what they are."""

import functools

import published_torch
import torch
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3


def _neighbours(model):
    """Rotary positions with the frequencies of neighbours, turned as halves."""
    rotation = model.rotary_emb.forward

    def forward(x, position_ids):
        return tuple(part[..., : part.shape[-1] // 2].repeat_interleave(2, -1) for part in rotation(x, position_ids))

    model.rotary_emb.forward = forward
    return model


def _tiled(model, module):
    """Key heads are tiled, not repeated."""
    for layer in model.layers:
        attend = layer.self_attn.forward

        def forward(*args, attend=attend, **kwargs):
            repeat, module.repeat_kv = module.repeat_kv, lambda x, count: x.repeat(1, count, 1, 1)
            try:
                return attend(*args, **kwargs)
            finally:
                module.repeat_kv = repeat

        layer.self_attn.forward = forward
    return model


def _without_bias(*layers):
    for layer in layers:
        layer.forward = functools.partial(torch.nn.functional.linear, weight=layer.weight)


def _configured(name, **changes):
    """A model of another config."""
    return lambda: getattr(published_torch, name)(**changes)


llama_epsilon = _configured("llama", rms_norm_eps=1e-3)
llama_activation = _configured("llama", hidden_act="gelu")
mistral_base = _configured("mistral", rope_parameters={"rope_type": "default", "rope_theta": 1000.0})
bert_activation = _configured("bert", hidden_act="gelu")
bert_epsilon = _configured("bert", layer_norm_eps=1e-5)
roberta = _configured("roberta", layer_norm_eps=1e-5)  # with the epsilon that KerasHub fixes
roberta_activation = _configured("roberta", layer_norm_eps=1e-5, hidden_act="gelu_pytorch_tanh")
distilbert_activation = _configured("distilbert", activation="gelu_pytorch_tanh")
gpt2_scale = _configured("gpt2", scale_attn_weights=False)
t5_epsilon = _configured("t5", layer_norm_epsilon=1e-3)
t5_activation = _configured("t5", feed_forward_proj="gelu")
bart_activation = _configured("bart", activation_function="gelu_new")
vit_epsilon = _configured("vit", layer_norm_eps=1e-12)
vit_bias = _configured("vit", qkv_bias=False)
vit_activation = _configured("vit", hidden_act="gelu_pytorch_tanh")


def llama_scale():
    model = published_torch.llama()
    for layer in model.layers:
        layer.self_attn.scaling = 1 / 6
    return model


def llama_rotary():
    return _neighbours(published_torch.llama())


def llama_gate():
    """The activation is applied to the other of the two."""
    model = published_torch.llama()
    for layer in model.layers:
        mlp = layer.mlp
        mlp.forward = lambda x, mlp=mlp: mlp.down_proj(mlp.gate_proj(x) * mlp.act_fn(mlp.up_proj(x)))
    return model


def llama_groups():
    return _tiled(published_torch.llama(), modeling_llama)


def mistral_rotary():
    return _neighbours(published_torch.mistral())


def mistral_groups():
    return _tiled(published_torch.mistral(), modeling_mistral)


def qwen2_bias():
    model = published_torch.qwen2()
    _without_bias(*(layer.self_attn.k_proj for layer in model.layers))
    return model


def qwen2_groups():
    return _tiled(published_torch.qwen2(), modeling_qwen2)


def qwen3():
    """With the epsilon of query and key norms that KerasHub fixes."""
    model = published_torch.qwen3()
    for layer in model.layers:
        layer.self_attn.q_norm.variance_epsilon = layer.self_attn.k_norm.variance_epsilon = 1e-5
    return model


def qwen3_rotary():
    return _neighbours(qwen3())


def qwen3_groups():
    return _tiled(qwen3(), modeling_qwen3)


def roberta_bias():
    model = roberta()
    _without_bias(*(layer.output.dense for layer in model.encoder.layer))
    return model


def distilbert_epsilon():
    model = published_torch.distilbert()
    for layer in model.transformer.layer:
        layer.output_layer_norm.eps = 1e-5
    return model


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


def t5_scale():
    model = published_torch.t5()
    for block in model.encoder.block:
        block.layer[0].SelfAttention.scaling = 6**-0.5
    return model


def bart_scale():
    model = published_torch.bart()
    for layer in model.decoder.layers:
        layer.encoder_attn.scaling = 1 / 6
    return model
