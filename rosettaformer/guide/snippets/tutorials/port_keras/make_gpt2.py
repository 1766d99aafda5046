import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=101, n_positions=32, n_embd=48, n_head=4, n_layer=2, bos_token_id=0, eos_token_id=0
)
GPT2LMHeadModel(config).save_pretrained("gpt2-random")
