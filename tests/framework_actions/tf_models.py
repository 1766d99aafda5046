"""The small models that actions of Keras users are done with, and what the reference says of them."""

import functools
import os
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from impl_tf import weights
from impl_tf.framework import keras
from impl_tf.transformer import Transformer
from reference_numpy import TransformerConfig, parameters, preset, transformer

from . import Actions
from .small import Small

__all__ = [
    "ACTIONS", "BOTH", "CLASSES", "CONFIG", "GPT2", "LABELS", "MASK", "MASKED", "PAIR", "QUIET", "SEGMENT", "SOURCE", "STATES", "TARGET",
    "Transformer", "equals_itself", "keras", "loaded", "loss", "moved", "reference", "right", "same", "stepped", "tf", "topic", "trained",
    "tree", "values", "weights",
]  # fmt: skip

SIZES = {
    "source_vocabulary": 23, "target_vocabulary": 23, "model_width": 8, "heads": 2, "key_value_heads": 2, "key_size": 4, "value_size": 4,
    "feed_forward_width": 12, "dropout_rate": 0.0, "attention_dropout_rate": 0.0, "padding_id": None,
}  # fmt: skip
CONFIG = preset("tiny", **SIZES, encoder_layers=1, decoder_layers=1, attention_bias=True, output_bias=True)
GPT2 = preset("gpt2_small", **SIZES, decoder_layers=1, max_positions=16)
BOTH = preset("bert_base", **SIZES, encoder_layers=1, max_positions=16, epsilon=1e-5, classes=3, classifier_dropout_rate=0.0)
CLASSES, MASKED = BOTH.replace(masked_language_head=False), BOTH.replace(classes=0)
STATES = CLASSES.replace(classes=0, pooler=False)

RNG = np.random.default_rng(0)
PAIR = SOURCE, TARGET = RNG.integers(1, 23, (4, 7)), RNG.integers(1, 23, (4, 5))
SEGMENT, LABELS = RNG.integers(0, 2, (4, 7)), RNG.integers(1, 23, (4, 5))
MASK = SOURCE > 4
QUIET = {"batch_size": 4, "verbose": 0, "shuffle": False}
RATE = 0.5  # of gradient descent


SMALL = Small(CONFIG, SOURCE, TARGET, "float64", 1e-9)
values, reference, same, right = SMALL.values, SMALL.reference, SMALL.same, SMALL.right


def loaded(config: TransformerConfig = CONFIG, dtype: str = "float64", **options: Any) -> Transformer:
    """A model of the config that holds them."""
    model = Transformer(config, dtype=dtype, **options)
    weights.load(model, values(config, model.variable_dtype), config)
    return model


ACTIONS = Actions("tf", model=loaded)
topic = ACTIONS.topic


def equals_itself(model: Transformer, tolerance: float = 1e-9) -> None:
    """A trained model is the reference with the parameters that it exports."""
    same(model(*PAIR), reference(arrays=weights.export(model, model.config)), tolerance)


def loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")


def trained(model: Any, **options: Any) -> Any:
    """The model, compiled for gradient descent unless options say otherwise, without XLA, which takes seconds to compile."""
    model.compile(**{"optimizer": keras.optimizers.SGD(RATE), "loss": loss(), "jit_compile": False} | options)
    return model


@functools.cache
def _stepped() -> dict[str, np.ndarray]:
    """The parameters after one step of gradient descent on LABELS, in float64."""
    flat = values()
    tree = parameters.nest(flat)
    logits = transformer.transformer(tree, CONFIG, *PAIR)
    exponent = np.exp(logits - logits.max(-1, keepdims=True))
    cotangent = (exponent / exponent.sum(-1, keepdims=True) - np.eye(23)[LABELS]) / LABELS.size
    gradients = parameters.flatten(transformer.transformer_vjp(tree, CONFIG, *PAIR, cotangent=cotangent)["parameters"])
    return {name: array - RATE * gradients[name] for name, array in flat.items()}


def stepped(model: Transformer, tolerance: float = 1e-9) -> None:
    """The model has taken the reference's step."""
    found = weights.export(model, CONFIG)
    for name, array in _stepped().items():
        same(found[name], array, tolerance)


def moved(before: Transformer, after: Transformer) -> dict[str, bool]:
    """Whether each parameter has changed, but for the biases of keys, on which nothing depends."""
    old, new = (weights.export(model, CONFIG) for model in (before, after))
    return {name: bool((array != new[name]).any()) for name, array in old.items() if not name.endswith("key.bias")}


def tree() -> dict[str, Any]:
    """The parameters, nested as the reference takes them."""
    return parameters.nest(values())
