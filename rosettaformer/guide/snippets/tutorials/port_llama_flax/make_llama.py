import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
scaling = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
sizes = {"vocab_size": 101, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
config = LlamaConfig(**sizes, **heads, rms_norm_eps=1e-5, rope_parameters=scaling)
LlamaForCausalLM(config).save_pretrained("llama-random", max_shard_size="100KB")
