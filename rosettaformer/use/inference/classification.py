"""Classifies texts with the labels of a folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reference_numpy import arithmetic, softmax

from ...files.checkpoints import Checkpoint
from ...files.checkpoints.hugging_face.reading import CONFIG
from .models import Model
from .tokenizer import Tokenizer


@dataclass(frozen=True)
class Labels:
    """Class names, and the function for probabilities: `softmax`, `sigmoid` or `none`."""

    names: tuple[str, ...]
    function: str


def labels_of(checkpoint: Checkpoint) -> Labels:
    """Returns the labels in config.json; default: LABEL_0, ..., softmax for several classes."""
    entries, classes = checkpoint.foreign.get(CONFIG, {}), checkpoint.config.classes
    named = entries.get("id2label") or {}
    if not isinstance(named, Mapping):
        raise ValueError(f"id2label of {CONFIG} must map class numbers to names; got {named!r:.100}")
    names = tuple(str(named.get(str(index), f"LABEL_{index}")) for index in range(classes))
    kind = entries.get("problem_type")
    several = kind == "multi_label_classification" or classes == 1
    return Labels(names, "none" if kind == "regression" else "sigmoid" if several else "softmax")


def probabilities(logits_bc: np.ndarray, labels: Labels) -> np.ndarray:
    """Converts logits to probabilities like transformers' `text-classification` pipeline."""
    if labels.function == "softmax":
        return softmax.softmax(logits_bc)
    return 0.5 * (1 + np.tanh(logits_bc / 2)) if labels.function == "sigmoid" else logits_bc


def classify(model: Model, tokenizer: Tokenizer, labels: Labels, texts: Sequence[str | tuple[str, str]]) -> np.ndarray:
    """Returns the class probabilities `b c` of a batch of texts.

    Texts are cut to the model's positions. A regression returns its numbers. A pair is two texts
    read as two segments; as in the library's pipeline, an empty second text is ignored.
    """
    given = [text[0] if isinstance(text, tuple) and not text[1] else text for text in texts]
    logits_bc = model.classify(*tokenizer.read(given, model.config))
    return probabilities(arithmetic.upcast_half(logits_bc), labels)
