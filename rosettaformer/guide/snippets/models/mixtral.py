import tempfile

import numpy as np
import torch
import transformers
from flax import nnx

import impl_jax.transformer
import impl_tf.transformer
import impl_torch.transformer
from impl_jax import weights as jax_weights
from impl_tf import weights as tf_weights
from impl_torch import weights as torch_weights
from reference_numpy import parameters
from reference_numpy.transformer import transformer
from rosettaformer.files import checkpoints

# any folder written by save_pretrained; here with random weights
torch.manual_seed(0)
sizes = {"vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
library = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **experts, num_key_value_heads=2)).eval()
with tempfile.TemporaryDirectory() as folder:
    library.save_pretrained(folder)
    checkpoint = checkpoints.load(folder)
config, values = checkpoint.config, checkpoint.parameters

ids = np.array([[5, 17, 4, 60, 8, 9], [3, 1, 4, 1, 5, 9]])
with torch.inference_mode():
    expected = library(torch.from_numpy(ids)).logits.numpy()

logits = {"numpy": transformer(parameters.nest(values), config, None, ids)}  # a decoder-only model has no source

model = impl_torch.transformer.Transformer(config).eval()
torch_weights.load(model, values, config)
with torch.inference_mode():
    logits["torch"] = model(None, torch.from_numpy(ids)).numpy()

model = impl_tf.transformer.Transformer(config)
tf_weights.load(model, values, config)
logits["tf"] = model(None, ids).numpy()

model = impl_jax.transformer.Transformer(config, rngs=nnx.Rngs(0))
model.eval()
jax_weights.load(model, values, config)
logits["jax"] = np.asarray(model(None, ids))

for name, array in logits.items():
    print(f"{name:6} {np.abs(array - expected).max():.1e}")
