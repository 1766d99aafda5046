"""Classifies texts, and names the classes of a folder."""

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
    """The names of the classes, and the function that turns logits into probabilities: `softmax`, `sigmoid`, or `none` in a regression."""

    names: tuple[str, ...]
    function: str


def labels_of(checkpoint: Checkpoint) -> Labels:
    """Returns the labels of config.json; by default LABEL_0, ..., and softmax for more than one class."""
    entries, classes = checkpoint.foreign.get(CONFIG, {}), checkpoint.config.classes
    named = entries.get("id2label") or {}
    if not isinstance(named, Mapping):
        raise ValueError(f"id2label of {CONFIG} must map the classes to their names; got {named!r:.100}")
    names = tuple(str(named.get(str(index), f"LABEL_{index}")) for index in range(classes))
    kind = entries.get("problem_type")
    several = kind == "multi_label_classification" or classes == 1
    return Labels(names, "none" if kind == "regression" else "sigmoid" if several else "softmax")


def probabilities(logits_bc: np.ndarray, labels: Labels) -> np.ndarray:
    """Converts logits as the pipeline `text-classification` of `transformers` does."""
    if labels.function == "softmax":
        return softmax.softmax(logits_bc)
    return 0.5 * (1 + np.tanh(logits_bc / 2)) if labels.function == "sigmoid" else logits_bc


def classify(model: Model, tokenizer: Tokenizer, labels: Labels, texts: Sequence[str | tuple[str, str]]) -> np.ndarray:
    """Returns the probability of every class for every text, `b c`, read in one batch: cut to the model's positions, padded to the longest.

    A regression returns its numbers. A pair is two texts that are read together, as two segments; an empty second text counts as none, as
    in the library's pipeline.
    """
    given = [text[0] if isinstance(text, tuple) and not text[1] else text for text in texts]
    logits_bc = model.classify(*tokenizer.read(given, model.config))
    return probabilities(arithmetic.upcast_half(logits_bc), labels)
