import bert
import port
import torch
from transformers import BertForMaskedLM

from impl_torch import weights
from rosettaformer.files import checkpoints
from rosettaformer.ports import Names

checkpoint = checkpoints.load("bert.safetensors")
c = checkpoint.config
model = bert.MaskedLanguageModel(c).eval()
table = Names(port.weights).table("masked_language_logits", c)
weights.load(model, checkpoint.parameters, c, table=table)

theirs = BertForMaskedLM.from_pretrained("bert-random").eval()
ids = torch.tensor([[2, 17, 4, 3, 41, 3, 0, 0], [2, 8, 9, 10, 11, 12, 13, 3]])
real = ids != 0  # like mask_zero in Keras
segments = torch.tensor([[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]])
with torch.inference_mode():
    ours = model(ids, real, segments)
    wanted = theirs(ids, attention_mask=real.int(), token_type_ids=segments).logits
print(f"largest difference from transformers: {(ours - wanted)[real].abs().max():.1e}")
