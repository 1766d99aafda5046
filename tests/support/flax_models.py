"""GPT-2 and Llama in Flax as users write them: functions of ids and mask, with the weights of a Hugging Face checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx
from safetensors.numpy import load_file


def _read(checkpoint: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads the config and the tensors by name."""
    return json.loads((checkpoint / "config.json").read_text()), load_file(checkpoint / "model.safetensors")


def gpt2(checkpoint: Path) -> Callable[..., Any]:
    """GPT-2 in Linen, with tensors under the names that transformers uses."""
    said, tensors = _read(checkpoint)
    width, heads, epsilon = said["n_embd"], said["n_head"], said["layer_norm_epsilon"]

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, seen: Any) -> Any:
            y = nn.LayerNorm(epsilon, name="ln_1")(x)
            split = (*x.shape[:2], heads, width // heads)
            query, key, value = (part.reshape(split) for part in jnp.split(nn.Dense(3 * width, name="c_attn")(y), 3, -1))
            mixed = nn.dot_product_attention(query, key, value, mask=seen)
            x = x + nn.Dense(width, name="attn_c_proj")(mixed.reshape(x.shape))
            y = nn.gelu(nn.Dense(said["n_inner"], name="c_fc")(nn.LayerNorm(epsilon, name="ln_2")(x)), approximate=True)
            return x + nn.Dense(width, name="mlp_c_proj")(y)

    class GPT2(nn.Module):
        @nn.compact
        def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
            table = nn.Embed(said["vocab_size"], width, name="wte")
            position = jnp.maximum(jnp.cumsum(attention_mask, 1) - 1, 0)
            x = table(input_ids) + nn.Embed(said["n_positions"], width, name="wpe")(position)
            seen = nn.make_causal_mask(input_ids, dtype=bool) & attention_mask[:, None, None, :]
            for index in range(said["n_layer"]):
                x = Block(name=f"h_{index}")(x, seen)
            return table.attend(nn.LayerNorm(epsilon, name="ln_f")(x))

    own: dict[str, Any] = {}
    for name, tensor in tensors.items():
        *path, last = name.removeprefix("transformer.").split(".")
        module = path[-1] if path[-1] != "c_proj" else f"{path[-2]}_c_proj"
        leaf = "bias" if last == "bias" else "embedding" if path[-1].startswith("w") else "scale" if "ln" in path[-1] else "kernel"
        held = own.setdefault(f"h_{path[1]}", {}) if path[0] == "h" else own
        held.setdefault(module, {})[leaf] = tensor
    return lambda input_ids, attention_mask: {"logits": GPT2().apply({"params": own}, input_ids, attention_mask)}


def llama(checkpoint: Path) -> Callable[..., Any]:
    """Llama in NNX, with tensors under the names that transformers uses."""
    said, tensors = _read(checkpoint)
    size, heads, groups = said["head_dim"], said["num_attention_heads"], said["num_key_value_heads"]
    rope, rngs = said["rope_parameters"], nnx.Rngs(0)
    turns = rope["rope_theta"] ** (-np.arange(0, size, 2) / size)
    smooth = turns * rope["original_max_position_embeddings"] / (2 * np.pi) - rope["low_freq_factor"]
    smooth = np.clip(smooth / (rope["high_freq_factor"] - rope["low_freq_factor"]), 0, 1)
    turns = (1 - smooth) * turns / rope["factor"] + smooth * turns

    def rotated(x: Any, position: Any) -> Any:
        angle = position[:, :, None, None] * jnp.asarray(turns, jnp.float32)
        first, second = jnp.split(x, 2, -1)
        return jnp.concatenate([first * jnp.cos(angle) - second * jnp.sin(angle), second * jnp.cos(angle) + first * jnp.sin(angle)], -1)

    def dense(given: int, taken: int) -> Any:
        return nnx.Linear(given, taken, use_bias=False, rngs=rngs)

    class Layer(nnx.Module):
        def __init__(self) -> None:
            width, hidden, epsilon = said["hidden_size"], said["intermediate_size"], said["rms_norm_eps"]
            self.input_layernorm, self.post_attention_layernorm = (nnx.RMSNorm(width, epsilon=epsilon, rngs=rngs) for _ in range(2))
            self.q_proj, self.o_proj = dense(width, heads * size), dense(heads * size, width)
            self.k_proj, self.v_proj = dense(width, groups * size), dense(width, groups * size)
            self.gate_proj, self.up_proj, self.down_proj = dense(width, hidden), dense(width, hidden), dense(hidden, width)

        def __call__(self, x: Any, position: Any, seen: Any) -> Any:
            y = self.input_layernorm(x)
            query, key, value = (part(y).reshape(*x.shape[:2], -1, size) for part in (self.q_proj, self.k_proj, self.v_proj))
            query, key = rotated(query, position), jnp.repeat(rotated(key, position), heads // groups, 2)
            mixed = nnx.dot_product_attention(query, key, jnp.repeat(value, heads // groups, 2), mask=seen)
            x = x + self.o_proj(mixed.reshape(*x.shape[:2], -1))
            y = self.post_attention_layernorm(x)
            return x + self.down_proj(nnx.silu(self.gate_proj(y)) * self.up_proj(y))

    class Llama(nnx.Module):
        def __init__(self) -> None:
            self.embed_tokens = nnx.Embed(said["vocab_size"], said["hidden_size"], rngs=rngs)
            self.layers = nnx.List([Layer() for _ in range(said["num_hidden_layers"])])
            self.norm = nnx.RMSNorm(said["hidden_size"], epsilon=said["rms_norm_eps"], rngs=rngs)
            self.lm_head = dense(said["hidden_size"], said["vocab_size"])

        def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
            x, position = self.embed_tokens(input_ids), jnp.maximum(jnp.cumsum(attention_mask, 1) - 1, 0)
            seen = nnx.make_causal_mask(input_ids, dtype=bool) & attention_mask[:, None, None, :]
            for layer in self.layers:
                x = layer(x, position, seen)
            return {"logits": self.lm_head(self.norm(x))}

    model = Llama()
    for name, tensor in tensors.items():
        *path, _ = (part for part in name.split(".") if part not in ("model", "self_attn", "mlp"))
        found: Any = model
        for part in path:
            found = found[int(part)] if part.isdigit() else getattr(found, part)
        table, norm = path[-1] == "embed_tokens", "norm" in path[-1]
        held = found.embedding if table else found.scale if norm else found.kernel
        assert held.shape == (tensor if table else tensor.T).shape, name
        held[...] = jnp.asarray(tensor if table else tensor.T)
    graph, state = nnx.split(model)
    return lambda input_ids, attention_mask: nnx.merge(graph, state)(input_ids, attention_mask)
