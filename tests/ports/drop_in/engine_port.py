# engine_port.py
import torch
from transformers import AutoModelForCausalLM

dtypes = ("float32", "bfloat16")
positions, rows, masks = "last", 1, False  # what the engine gives: the next token's logits, of one prompt, which has no padding


def load(folder):
    engine = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="eager").eval()  # a stand-in
    return torch.no_grad()(lambda token_bt: engine(torch.from_numpy(token_bt), logits_to_keep=1).logits)
