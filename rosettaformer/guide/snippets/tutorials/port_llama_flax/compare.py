import jax.numpy as jnp
import llama
import load
import numpy as np
import torch
from flax import nnx
from transformers import LlamaForCausalLM

c = load.config("llama-random")
model = load.filled(lambda: llama.Llama(c, jnp.float32, nnx.Rngs(0)), "llama-random")

theirs = LlamaForCausalLM.from_pretrained("llama-random").eval()
ids = np.arange(20)[None] * 7 % 101
prompt, end, steps = ids[:, :5], 69, 12
tokens, _ = llama.generate(model, prompt, end, steps)
print("generated:   ", tokens[0].tolist())
with torch.inference_mode():
    given = {"max_new_tokens": steps, "eos_token_id": end, "do_sample": False}
    text = theirs.generate(torch.from_numpy(prompt), **given)
    wanted = theirs(torch.from_numpy(ids)).logits.numpy()
print("transformers:", text[0, 5:].tolist())
print(f"largest difference from transformers: {np.abs(model(ids) - wanted).max():.1e}")
