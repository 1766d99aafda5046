"""What every framework computes: one model, one batch, and the answer that each must give before it is timed."""

from dataclasses import dataclass

import numpy as np

from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy.transformer import transformer

__all__ = ["BATCH", "LENGTH", "PADDING", "VOCABULARY", "Problem", "make", "sizes"]

BATCH, LENGTH, VOCABULARY, PADDING = 16, 64, 8192, 0


@dataclass(frozen=True)
class Problem:
    """A config, float32 parameters by canonical name, and token ids padded at the right."""

    config: TransformerConfig
    tensors: dict[str, np.ndarray]
    source: np.ndarray
    target: np.ndarray

    def answer(self) -> np.ndarray:
        """The logits, by the truth in float64."""
        wide = parameters.nest({name: tensor.astype(np.float64) for name, tensor in self.tensors.items()})
        return transformer(wide, self.config, self.source, self.target)


def sizes(name: str) -> TransformerConfig:
    """The sizes of that preset, with the choices that `torch.nn.Transformer` can express."""
    return preset(
        name, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY, share_embeddings=False, tie_logits=False,
        attention_bias=True, output_bias=True, final_norm=True, epsilon=1e-5, padding_id=PADDING,
    )  # fmt: skip


def make(config: TransformerConfig, seed: int = 0) -> Problem:
    """The problem of that config."""
    rng = np.random.default_rng(seed)
    tensors = parameters.initialise(config, seed, np.float32)
    for name, tensor in tensors.items():
        if name.endswith(("bias", "scale", "offset")):  # fresh ones are 0 and 1: exchanged ones would not show
            tensor += rng.normal(0, 0.1, tensor.shape).astype(np.float32)
    lengths = np.rint(np.linspace(0.6, 1, BATCH) * LENGTH)  # a fifth is padding
    return Problem(config, tensors, _tokens(rng, lengths), _tokens(rng, rng.permutation(lengths)))


def _tokens(rng: np.random.Generator, lengths: np.ndarray) -> np.ndarray:
    token = rng.integers(1, VOCABULARY, (BATCH, LENGTH))
    return np.where(np.arange(LENGTH) < lengths[:, None], token, PADDING)
