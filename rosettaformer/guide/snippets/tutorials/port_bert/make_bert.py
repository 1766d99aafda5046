import torch
from transformers import BertConfig, BertForMaskedLM

torch.manual_seed(0)
sizes = {"hidden_size": 48, "intermediate_size": 96, "max_position_embeddings": 32}
numbers = {"vocab_size": 101, "num_hidden_layers": 2, "num_attention_heads": 4}
model = BertForMaskedLM(BertConfig(**sizes, **numbers))
torch.nn.init.normal_(model.cls.predictions.bias, std=0.02)  # zero only in a new model
model.save_pretrained("bert-random")
