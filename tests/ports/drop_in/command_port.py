# my_command.py
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

folder, prompts, answers = map(Path, sys.argv[1:])
model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
for file in prompts.iterdir():
    token_bt, mask_bt = (torch.from_numpy(np.load(file)[name]) for name in ("token_bt", "mask_bt"))
    position_bt = (mask_bt.cumsum(1) - 1).clip(0)
    logits_btv = model(token_bt, attention_mask=mask_bt, position_ids=position_bt).logits
    np.save(answers / f"{file.stem}.npy", logits_btv.detach().float().numpy())
