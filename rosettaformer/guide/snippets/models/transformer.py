import tempfile
from pathlib import Path

import numpy as np
import torch
from flax import nnx
from torch import nn

import impl_jax.transformer
import impl_tf.transformer
import impl_torch.transformer
from impl_jax import weights as jax_weights
from impl_tf import weights as tf_weights
from impl_torch import weights as torch_weights
from reference_numpy import parameters
from reference_numpy.positional_encoding import positional_encoding
from reference_numpy.transformer import transformer
from rosettaformer.files import checkpoints


class Translator(nn.Module):
    """torch.nn.Transformer with embeddings, positions and logits."""

    def __init__(self):
        super().__init__()
        self.source_table, self.target_table = nn.Embedding(101, 32), nn.Embedding(97, 32)
        self.transformer = nn.Transformer(32, 4, 2, 2, 64, dropout=0.0, batch_first=True)
        self.output = nn.Linear(32, 97)

    def forward(self, source, target):
        source_padding, target_padding = source == 0, target == 0
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.bool)
        decoded = self.transformer(
            self.embed(self.source_table, source),
            self.embed(self.target_table, target),
            tgt_mask=causal,
            src_key_padding_mask=source_padding,  # here True = hidden
            tgt_key_padding_mask=target_padding,
            memory_key_padding_mask=source_padding,
        )
        return self.output(decoded)

    def embed(self, table, ids):
        positions = positional_encoding(np.arange(ids.shape[1])[None], 32, np.dtype("float32"))
        return table(ids) * 32**0.5 + torch.from_numpy(positions)


torch.manual_seed(0)
library = Translator().eval()
with tempfile.TemporaryDirectory() as folder:
    torch.save(library.state_dict(), Path(folder, "model.pt"))
    checkpoint = checkpoints.load(
        Path(folder, "model.pt"),
        preset="nn_transformer",  # choices not visible in shapes: post-norm, ReLU, epsilon 1e-5, biases
        settings={"heads": 4},
        source_embedding="source_table",
        target_embedding="target_table",
        logits="output",
    )
config, values = checkpoint.config, checkpoint.parameters

source, target = np.array([[5, 17, 4, 60, 0, 0], [3, 1, 4, 1, 5, 9]]), np.array([[1, 8, 9, 10], [1, 7, 2, 0]])
with torch.inference_mode():
    expected = library(torch.from_numpy(source), torch.from_numpy(target)).numpy()

logits = {"numpy": transformer(parameters.nest(values), config, source, target)}

model = impl_torch.transformer.Transformer(config).eval()
torch_weights.load(model, values, config)
with torch.inference_mode():
    logits["torch"] = model(torch.from_numpy(source), torch.from_numpy(target)).numpy()

model = impl_tf.transformer.Transformer(config)
tf_weights.load(model, values, config)
logits["tf"] = model(source, target).numpy()

model = impl_jax.transformer.Transformer(config, rngs=nnx.Rngs(0))
model.eval()
jax_weights.load(model, values, config)
logits["jax"] = np.asarray(model(source, target))

for name, array in logits.items():
    print(f"{name:6} {np.abs(array - expected)[target != 0].max():.1e}")
