"""What every framework computes: one model, one batch, and the answer that each must give before it is timed."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from reference_numpy import TransformerConfig, parameters, preset
from reference_numpy.recipe import PAPER, Recipe
from reference_numpy.training import Trainer
from reference_numpy.transformer import transformer

__all__ = ["BATCH", "CHECKED", "LENGTH", "PADDING", "VOCABULARY", "Problem", "make", "sizes"]

BATCH, LENGTH, VOCABULARY, PADDING = 16, 64, 8192, 0
CHECKED = 2  # training steps whose losses are compared: the second shows the gradients and the update


@dataclass(frozen=True)
class Problem:
    """A config, float32 parameters by canonical name, token ids padded at the right, and how it is trained.

    target is the decoder's input of a forward pass; `sequence` is the target of a training step.
    """

    config: TransformerConfig
    tensors: dict[str, np.ndarray]
    source: np.ndarray
    target: np.ndarray
    recipe: Recipe = PAPER

    @property
    def sequence(self) -> np.ndarray:
        """One token longer than target: the decoder is given all but the last of it, and the labels are all but the first."""
        return np.concatenate([np.ones((BATCH, 1), self.target.dtype), self.target], axis=1)

    @property
    def checked(self) -> "Problem":
        """The problem of which training steps are compared: without dropout, and with a learning rate that shows in the next loss."""
        config, recipe = self.config.replace(dropout_rate=0.0), self.recipe.replace(warmup=40)
        return dataclasses.replace(self, config=config, recipe=recipe)

    def answer(self) -> np.ndarray:
        """The logits, by the truth in float64."""
        return transformer(parameters.nest(self._wide()), self.config, self.source, self.target)

    def losses(self) -> np.ndarray:
        """The losses of the first CHECKED training steps on the one batch, by the truth in float64."""
        trainer = Trainer(self.config, self.recipe, self._wide())
        return np.array([trainer.train_step(self.source, self.sequence) for _ in range(CHECKED)])

    def _wide(self) -> dict[str, np.ndarray]:
        return {name: tensor.astype(np.float64) for name, tensor in self.tensors.items()}


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
