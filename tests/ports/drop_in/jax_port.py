# jax_port.py
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from safetensors.flax import load_file

dtypes = ("float32",)


def norm(x, scale, epsilon):
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + epsilon) * scale


def rotated(x_bhtk, position_bt, theta):
    half = x_bhtk.shape[-1] // 2
    angle_btk = position_bt[..., None] / theta ** (jnp.arange(half) / half)
    cos, sin = (function(angle_btk)[:, None] for function in (jnp.cos, jnp.sin))
    first, second = x_bhtk[..., :half], x_bhtk[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def forward(said, tensors, token_bt, mask_bt):  # Qwen 3: a stand-in for the model that MaxText makes of the folder
    heads, groups, epsilon = said["num_attention_heads"], said["num_key_value_heads"], said["rms_norm_eps"]
    theta, length = said["rope_parameters"]["rope_theta"], token_bt.shape[1]
    position_bt = jnp.maximum(jnp.cumsum(mask_bt, 1) - 1, 0)
    seen_bts = jnp.tril(jnp.ones((length, length), bool)) & mask_bt[:, None]
    x = tensors["model.embed_tokens.weight"][token_bt]
    for layer in range(said["num_hidden_layers"]):
        get = {name.removeprefix(f"model.layers.{layer}."): array for name, array in tensors.items()}.__getitem__
        y = norm(x, get("input_layernorm.weight"), epsilon)
        q, k, v = (jnp.moveaxis((y @ get(f"self_attn.{n}_proj.weight").T).reshape(*y.shape[:2], -1, said["head_dim"]), 2, 1) for n in "qkv")
        q, k = (rotated(norm(z, get(f"self_attn.{n}_norm.weight"), epsilon), position_bt, theta) for n, z in (("q", q), ("k", k)))
        k, v = (jnp.repeat(z, heads // groups, 1) for z in (k, v))
        score = jnp.where(seen_bts[:, None], q @ jnp.swapaxes(k, 2, 3) / said["head_dim"] ** 0.5, -1e30)
        y = jnp.moveaxis(jax.nn.softmax(score) @ v, 1, 2).reshape(*x.shape[:2], -1)
        x = x + y @ get("self_attn.o_proj.weight").T
        y = norm(x, get("post_attention_layernorm.weight"), epsilon)
        x = x + (jax.nn.silu(y @ get("mlp.gate_proj.weight").T) * (y @ get("mlp.up_proj.weight").T)) @ get("mlp.down_proj.weight").T
    return norm(x, tensors["model.norm.weight"], epsilon) @ tensors["lm_head.weight"].T


def load(folder):
    said, tensors = json.loads(Path(folder, "config.json").read_text()), load_file(Path(folder, "model.safetensors"))
    return jax.jit(partial(forward, said, tensors))
