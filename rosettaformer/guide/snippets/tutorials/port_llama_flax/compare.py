import jax.numpy as jnp
import llama
import load
import numpy as np
import torch
from flax import nnx
from transformers import LlamaForCausalLM

from rosettaformer import checkpoints

c = checkpoints.load("llama.safetensors").config
model = load.filled(lambda: llama.Llama(c, jnp.float32, nnx.Rngs(0)), "llama-random")

theirs = LlamaForCausalLM.from_pretrained("llama-random").eval()
ids = np.arange(20)[None] * 7 % 101
with torch.inference_mode():
    wanted = theirs(torch.from_numpy(ids)).logits.numpy()
print(f"largest difference from transformers: {np.abs(model(ids) - wanted).max():.1e}")
