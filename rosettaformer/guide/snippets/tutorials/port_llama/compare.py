import llama
import port
import torch
from transformers import LlamaForCausalLM

from impl_torch import weights
from rosettaformer.files import checkpoints
from rosettaformer.ports import Names

checkpoint = checkpoints.load("llama.safetensors")
c = checkpoint.config
model = llama.Llama(c).eval()
if c.tie_logits:  # tie_word_embeddings: the files have only the table
    model.lm_head.weight = model.embed_tokens.weight
weights.load(model, checkpoint.parameters, c, table=Names(port.weights).table("transformer", c))

theirs = LlamaForCausalLM.from_pretrained("llama-random").eval()
ids = torch.arange(20)[None] * 7 % 101
prompt, end, steps = ids[:, :5], 69, 12
tokens, _ = llama.generate(model, prompt, end, steps)
print("generated:   ", tokens[0].tolist())
with torch.inference_mode():
    given = {"max_new_tokens": steps, "eos_token_id": end, "do_sample": False}
    text = theirs.generate(prompt, **given)
    difference = (model(ids) - theirs(ids).logits).abs().max()
print("transformers:", text[0, 5:].tolist())
print(f"largest difference from transformers: {difference:.1e}")
