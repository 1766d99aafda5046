# engine_port.py
import torch
from transformers import AutoModelForCausalLM

dtypes = ("float32", "bfloat16")
positions, rows, masks = "last", 1, False  # the next token's logits, for one prompt, no padding


def load(folder):
    options = {"dtype": "auto", "attn_implementation": "eager"}
    engine = AutoModelForCausalLM.from_pretrained(folder, **options).eval()  # a stand-in

    @torch.no_grad()
    def logits(token_bt):
        return engine(torch.from_numpy(token_bt), logits_to_keep=1).logits

    return logits
