"""Small models that actions of Keras and Flax users are done with: their parameters, and what the reference says of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, encoder_only, parameters, transformer

__all__ = ["Small"]


@dataclass(frozen=True)
class Small:
    """What is taken where an action says nothing else: a config, ids, the dtype of parameters, how far numbers may be apart."""

    config: TransformerConfig
    source: np.ndarray
    target: np.ndarray
    dtype: Any
    tolerance: float

    def values(self, config: TransformerConfig | None = None, dtype: Any = None) -> dict[str, np.ndarray]:
        """Canonical parameters, biases and offsets not 0."""
        rng, shapes = np.random.default_rng(3), parameters.shapes(config or self.config)
        return {name: (0.5 * rng.standard_normal(shape)).astype(dtype or self.dtype) for name, shape in shapes.items()}

    def reference(self, config: TransformerConfig | None = None, arrays: dict[str, np.ndarray] | None = None, **inputs: Any) -> np.ndarray:
        """What the reference's model gives in float64; an encoder-only model what its head gives."""
        config = config or self.config
        tree = parameters.nest({name: array.astype(np.float64) for name, array in (arrays or self.values(config)).items()})
        given = {"source": self.source if config.encoder_layers else None} | inputs
        if config.decoder_layers:
            return transformer.transformer(tree, config, **{"target": self.target} | given)
        head = encoder_only.classify if config.classes else encoder_only.masked_language_logits
        return (head if config.pooler else transformer.encode)(tree, config, **given)

    def same(self, found: Any, expected: Any, tolerance: float | None = None) -> None:
        one, other = np.asarray(found, np.float64), np.asarray(expected, np.float64)
        np.testing.assert_allclose(one, other, rtol=0, atol=self.tolerance if tolerance is None else tolerance)

    def right(self, logits: Any, config: TransformerConfig | None = None, tolerance: float | None = None, **inputs: Any) -> None:
        """They are the reference's."""
        self.same(logits, self.reference(config, **inputs), tolerance)
