# my_port.py
import torch
from transformers import AutoModelForCausalLM

dtypes = ("float32", "bfloat16")


def load(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return lambda token_bt: model(torch.from_numpy(token_bt)).logits
