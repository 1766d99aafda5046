import gpt2
import port
import torch
from transformers import GPT2LMHeadModel

from impl_torch import weights
from rosettaformer.files import checkpoints
from rosettaformer.ports import Names

checkpoint = checkpoints.load("gpt2.safetensors")
c = checkpoint.config
model = gpt2.GPT2(c.target_vocabulary, c.max_positions, c.decoder_layers, *port.sizes(c)).eval()
weights.load(model, checkpoint.parameters, c, table=Names(port.weights).table("transformer", c))

theirs = GPT2LMHeadModel.from_pretrained("gpt2-random").eval()
ids = torch.arange(20)[None] * 7 % 101
with torch.inference_mode():
    difference = (model(ids) - theirs(ids).logits).abs().max()
print(f"largest difference from transformers: {difference:.1e}")
