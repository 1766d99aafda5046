"""Transformers models with one difference each."""

from functools import partial

import published_torch
import torch
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3


def _neighbours(build):
    """Rotary positions with the frequencies of adjacent pairs, applied to halves."""

    def built():
        model = build()
        rotation = model.rotary_emb.forward

        def forward(x, position_ids):
            halves = (part[..., : part.shape[-1] // 2] for part in rotation(x, position_ids))
            return tuple(half.repeat_interleave(2, -1) for half in halves)

        model.rotary_emb.forward = forward
        return model

    return built


def _each(name, layers, change, **changes):
    """Returns a model with a change in each of these layers."""

    def built():
        model = getattr(published_torch, name)(**changes)
        for layer in model.get_submodule(layers):
            change(layer)
        return model

    return built


def _set(name, value):
    """Returns a change of an attribute of a layer, or of a nested layer."""
    inner, _, last = name.rpartition(".")
    return lambda layer: setattr(layer.get_submodule(inner), last, value)


def _tiled(module):
    """Tiles key heads instead of repeating them."""

    def change(layer):
        attend = layer.self_attn.forward

        def forward(*args, **kwargs):
            repeat, module.repeat_kv = module.repeat_kv, lambda x, count: x.repeat(1, count, 1, 1)
            try:
                return attend(*args, **kwargs)
            finally:
                module.repeat_kv = repeat

        layer.self_attn.forward = forward

    return change


def _without_bias(name):
    def change(layer):
        dense = layer.get_submodule(name)
        kernel = dense.weight if name == "mlp.c_proj" else dense.weight.T  # GPT-2's kernel is transposed
        dense.forward = lambda x: x @ kernel

    return change


def _gate(layer):
    """Applies the activation to the other factor."""
    mlp = layer.mlp
    mlp.forward = lambda x: mlp.down_proj(mlp.gate_proj(x) * mlp.act_fn(mlp.up_proj(x)))


def _one(layer):
    """Scales by the parameter instead of 1 + the parameter."""
    norm = layer.post_attention_layernorm
    norm.forward = lambda x: norm._norm(x) * norm.weight


def _over_all(layer):
    """Weights experts by the softmax over all of them."""
    gate, choose = layer.mlp.gate, layer.mlp.gate.forward

    def forward(x):
        logits, _, chosen = choose(x)
        return logits, logits.softmax(-1).gather(-1, chosen), chosen

    gate.forward = forward


def _norms_of_keras(layer):
    """Sets the epsilon of query and key norms that KerasHub fixes."""
    layer.self_attn.q_norm.variance_epsilon = layer.self_attn.k_norm.variance_epsilon = 1e-5


llama_epsilon = partial(published_torch.llama, rms_norm_eps=1e-3)
llama_activation = partial(published_torch.llama, hidden_act="gelu")
SMALL_BASE = {"rope_type": "default", "rope_theta": 1000.0}
mistral_base = partial(published_torch.mistral, rope_parameters=SMALL_BASE)
bert_activation = partial(published_torch.bert, hidden_act="gelu")
bert_epsilon = partial(published_torch.bert, layer_norm_eps=1e-5)
roberta = partial(published_torch.roberta, layer_norm_eps=1e-5)  # KerasHub fixes this epsilon
roberta_activation = partial(published_torch.roberta, layer_norm_eps=1e-5, hidden_act="gelu_pytorch_tanh")
distilbert_activation = partial(published_torch.distilbert, activation="gelu_pytorch_tanh")
gpt2_scale = partial(published_torch.gpt2, scale_attn_weights=False)
t5_epsilon = partial(published_torch.t5, layer_norm_epsilon=1e-3)
bart_activation = partial(published_torch.bart, activation_function="gelu_new")
vit_epsilon = partial(published_torch.vit, layer_norm_eps=1e-12)
vit_bias = partial(published_torch.vit, qkv_bias=False)
gpt_oss = partial(  # KerasHub's windows are one wider, and in the other layers
    published_torch.gpt_oss, sliding_window=4, layer_types=["full_attention", "sliding_attention"]
)
llama_scale = _each("llama", "layers", _set("self_attn.scaling", 1 / 6))
llama_rotary = _neighbours(published_torch.llama)
llama_gate = _each("llama", "layers", _gate)
llama_groups = _each("llama", "layers", _tiled(modeling_llama))
mistral_rotary = _neighbours(published_torch.mistral)
mistral_groups = _each("mistral", "layers", _tiled(modeling_mistral))
qwen2_bias = _each("qwen2", "layers", _without_bias("self_attn.k_proj"))
qwen2_groups = _each("qwen2", "layers", _tiled(modeling_qwen2))
qwen3 = _each("qwen3", "layers", _norms_of_keras)
qwen3_rotary = _neighbours(qwen3)
qwen3_groups = _each("qwen3", "layers", lambda layer: (_norms_of_keras(layer), _tiled(modeling_qwen3)(layer)))
roberta_bias = _each("roberta", "encoder.layer", _without_bias("output.dense"), layer_norm_eps=1e-5)
distilbert_epsilon = _each("distilbert", "transformer.layer", _set("output_layer_norm.eps", 1e-5))
gpt2_bias = _each("gpt2", "h", _without_bias("mlp.c_proj"))
mixtral_experts = _each("mixtral", "layers", _over_all)
qwen3_moe_experts = partial(published_torch.qwen3_moe, norm_topk_prob=False)
gemma_one = _each("gemma", "layers", _one)
gemma_activation = _each("gemma", "layers", _set("mlp.act_fn", torch.nn.GELU()))
t5_scale = _each("t5", "encoder.block", _set("layer.0.SelfAttention.scaling", 6**-0.5))
bart_scale = _each("bart", "decoder.layers", _set("encoder_attn.scaling", 1 / 6))
