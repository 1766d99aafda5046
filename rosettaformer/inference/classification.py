"""Classifies texts."""

from collections.abc import Sequence

import numpy as np

from reference_numpy import arithmetic

from .labels import Labels, probabilities
from .models import Model
from .tokenizer import Tokenizer


def classify(model: Model, tokenizer: Tokenizer, labels: Labels, texts: Sequence[str | tuple[str, str]]) -> np.ndarray:
    """Returns the probability of every class for every text, `b c`, read in one batch: cut to the model's positions, padded to the longest.

    A regression returns its numbers. A pair is two texts that are read together, as two segments; an empty second text counts as none, as
    in the library's pipeline.
    """
    given = [text[0] if isinstance(text, tuple) and not text[1] else text for text in texts]
    logits_bc = model.classify(*tokenizer.read(given, model.config))
    return probabilities(arithmetic.upcast_half(logits_bc), labels)
