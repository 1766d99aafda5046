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
from reference_numpy import encoder_only, parameters
from reference_numpy.values import Text
from rosettaformer.files import checkpoints

# any folder written by save_pretrained; here with random weights
torch.manual_seed(0)
sizes = {"vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
library = transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).eval()
with tempfile.TemporaryDirectory() as folder:
    library.save_pretrained(folder)
    checkpoint = checkpoints.load(folder)
config, values = checkpoint.config, checkpoint.parameters

ids = np.array([[2, 17, 4, 3, 0, 0], [2, 8, 9, 10, 11, 3]])
mask = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], bool)  # True = may attend
segments = np.array([[0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1]])

with torch.inference_mode():
    given = {"input_ids": ids, "attention_mask": mask.astype(int), "token_type_ids": segments}
    expected = library(**{name: torch.from_numpy(array) for name, array in given.items()}).logits.numpy()

logits = {"numpy": encoder_only.masked_language_logits(parameters.nest(values), config, Text(ids, mask, segments))}

model = impl_torch.transformer.Transformer(config).eval()
torch_weights.load(model, values, config)
with torch.inference_mode():
    text = impl_torch.values.Text(*map(torch.from_numpy, (ids, mask, segments)))
    logits["torch"] = model.masked_language_logits(text).numpy()

model = impl_tf.transformer.Transformer(config)
tf_weights.load(model, values, config)
logits["tf"] = model.masked_language_logits(impl_tf.values.Text(ids, mask, segments)).numpy()

model = impl_jax.transformer.Transformer(config, rngs=nnx.Rngs(0))
model.eval()
jax_weights.load(model, values, config)
logits["jax"] = np.asarray(model.masked_language_logits(impl_jax.values.Text(ids, mask, segments)))

for name, array in logits.items():
    print(f"{name:6} {np.abs(array - expected)[mask].max():.1e}")  # outputs at padding are undefined
