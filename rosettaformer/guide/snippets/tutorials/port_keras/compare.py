import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import gpt2
import numpy as np
import port
import torch
from transformers import GPT2LMHeadModel

from impl_tf import weights
from rosettaformer.files import checkpoints
from rosettaformer.ports import Names

checkpoint = checkpoints.load("gpt2.safetensors")
c = checkpoint.config
ids = np.arange(20)[None] * 7 % 101
model = gpt2.GPT2(c.target_vocabulary, c.max_positions, c.decoder_layers, *port.sizes(c))
model(ids)  # Keras layers create variables at the first call
weights.load(model, checkpoint.parameters, c, table=Names(port.weights).table("transformer", c))

theirs = GPT2LMHeadModel.from_pretrained("gpt2-random").eval()
with torch.inference_mode():
    wanted = theirs(torch.from_numpy(ids)).logits.numpy()
print(f"largest difference from transformers: {np.abs(model(ids).numpy() - wanted).max():.1e}")
