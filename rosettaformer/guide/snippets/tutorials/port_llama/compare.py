import llama
import port
import torch
from transformers import LlamaForCausalLM

from impl_torch import weights
from rosettaformer import checkpoints
from rosettaformer.ports import Names

checkpoint = checkpoints.load("llama.safetensors")
c = checkpoint.config
model = llama.Llama(c).eval()
weights.load(model, checkpoint.parameters, c, table=Names(port.weights).table("transformer", c))

theirs = LlamaForCausalLM.from_pretrained("llama-random").eval()
ids = torch.arange(20)[None] * 7 % 101
with torch.inference_mode():
    difference = (model(ids) - theirs(ids).logits).abs().max()
print(f"largest difference from transformers: {difference:.1e}")
