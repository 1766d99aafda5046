import gpt2
import jax.numpy as jnp
import numpy as np
import port
import torch
from flax import nnx
from transformers import GPT2LMHeadModel

from impl_jax import weights
from rosettaformer.files import checkpoints
from rosettaformer.ports import Names

checkpoint = checkpoints.load("gpt2.safetensors")
c = checkpoint.config
model = gpt2.GPT2(
    c.target_vocabulary, c.max_positions, c.decoder_layers, *port.sizes(c), jnp.float32, nnx.Rngs(0)
)
weights.load(model, checkpoint.parameters, c, table=Names(port.weights).table("transformer", c))

theirs = GPT2LMHeadModel.from_pretrained("gpt2-random").eval()
ids = np.arange(20)[None] * 7 % 101
with torch.inference_mode():
    wanted = theirs(torch.from_numpy(ids)).logits.numpy()
print(f"largest difference from transformers: {np.abs(model(ids) - wanted).max():.1e}")
