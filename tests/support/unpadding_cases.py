"""What unpadding is tested on: patterns of padding, and models that differ in what it touches."""

from typing import Any

import numpy as np
from test_training import CONFIG, STILL

from reference_numpy import TransformerConfig, parameters, transformer

__all__ = ["CONFIGS", "PATTERNS", "SMOOTHING", "arrays", "loss_and_gradients", "tokens"]

ROWS, SOURCE, TARGET = 5, 9, 8  # more positions than there are flat lengths, so that some end with the filler
SMOOTHING = 0.1
LEARNED = {"positions": "learned", "max_positions": 11, "scale_embedding": False}
UNTIED = {"share_embeddings": False, "tie_logits": False, "target_vocabulary": 29}
CONFIGS = {
    "post-sinusoidal-tied": CONFIG.replace(**STILL),
    "pre-learned-from-the-row-untied": CONFIG.replace(
        **STILL, **LEARNED, **UNTIED, position_start="row", norm_placement="pre", final_norm=True, attention_bias=True
    ),
    "post-learned-from-the-first-token-normalised": CONFIG.replace(
        **STILL, **LEARNED, embedding_norm=True, encoder_layers=2, decoder_layers=2
    ),
    "pre-sinusoidal-from-the-row": CONFIG.replace(**STILL, position_start="row", norm_placement="pre", tie_logits=False),
    "decoder-only": CONFIG.replace(**STILL, encoder_layers=0, share_embeddings=False),
}
PLACE = np.arange(SOURCE)
# Which places of each row are real.
PATTERNS = {
    "all": [PLACE >= 0] * ROWS,
    "none": [PLACE < 0] * ROWS,
    "right": [row + 3 > PLACE for row in range(ROWS)],
    "left": [row < PLACE for row in range(ROWS)],
    "inside": [PLACE % (row + 2) != 1 for row in range(ROWS)],
    "one-token": [row == PLACE for row in range(ROWS)],
    "mixed": [PLACE < 0, PLACE > 2, PLACE >= 0, PLACE < 4, PLACE % 3 == 1],
}


def tokens(pattern: str, config: TransformerConfig, seed: int = 0) -> tuple[Any, Any]:
    """Source and target of the pattern; of the target other rows have it."""
    rng, real = np.random.default_rng(seed), np.stack(PATTERNS[pattern])
    source, target = (
        np.where(mask[:, :length], rng.integers(1, 23, (ROWS, length)), 0) for mask, length in ((real, SOURCE), (real[::-1], TARGET))
    )
    return (source if config.encoder_layers else None), target


def arrays(config: TransformerConfig) -> dict[str, np.ndarray]:
    """Parameters by canonical name, in float64: none is 0 or 1."""
    rng = np.random.default_rng(1)
    return {name: 0.3 * rng.normal(size=shape) for name, shape in parameters.shapes(config).items()}


def loss_and_gradients(
    config: TransformerConfig, source: np.ndarray | None, target: np.ndarray, keep: Any = None
) -> tuple[float, dict[str, np.ndarray]]:
    """The reference's loss, and its gradients by canonical name."""
    nested = parameters.nest(arrays(config))
    value = transformer.training_loss(nested, config, source, target, SMOOTHING, keep=keep)
    pulled = transformer.training_loss_vjp(nested, config, source, target, SMOOTHING, keep=keep, cotangent=np.ones(()))
    return float(value), parameters.flatten(pulled["parameters"])
