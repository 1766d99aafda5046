"""The small models that actions of Flax users are done with, and what the reference says of them."""

import functools
import os
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")  # half the time to compile

import jax
import numpy as np
from flax import nnx

from impl_jax import weights
from impl_jax.transformer import Transformer
from reference_numpy import TransformerConfig, encoder_only, parameters, transformer

from . import Actions
from .jax_data import CONFIG, PAIR, SMOOTHING, SOURCE, TARGET


def values(config: TransformerConfig = CONFIG, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Canonical parameters, biases and offsets not 0."""
    rng = np.random.default_rng(3)
    return {name: (0.5 * rng.standard_normal(shape)).astype(dtype) for name, shape in parameters.shapes(config).items()}


def loaded(config: TransformerConfig = CONFIG, kind: type[Transformer] = Transformer, **options: Any) -> Transformer:
    """A model of the config that holds them, in evaluation."""
    model = kind(config, **({"rngs": nnx.Rngs(0)} | options))
    weights.load(model, values(config, jax.tree.leaves(nnx.state(model, nnx.Param))[0].dtype), config)
    model.eval()
    return model


ACTIONS = Actions("jax", model=loaded)
topic = ACTIONS.topic


def reference(config: TransformerConfig = CONFIG, arrays: dict[str, np.ndarray] | None = None, **inputs: Any) -> np.ndarray:
    """What the reference's model gives in float64, by default of SOURCE and TARGET; an encoder-only model what its head gives."""
    tree = parameters.nest({name: array.astype(np.float64) for name, array in (arrays or values(config)).items()})
    if config.decoder_layers:
        return transformer.transformer(tree, config, **{"source": SOURCE if config.encoder_layers else None, "target": TARGET} | inputs)
    head = encoder_only.classify if config.classes else encoder_only.masked_language_logits
    return (head if config.pooler else transformer.encode)(tree, config, **{"source": SOURCE} | inputs)


def same(found: Any, expected: Any, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(expected, np.float64), rtol=0, atol=tolerance)


def differs(one: Any, other: Any) -> None:
    assert np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).max() > 1e-3


def right(logits: Any, config: TransformerConfig = CONFIG, tolerance: float = 1e-4, **inputs: Any) -> None:
    """They are the reference's."""
    same(logits, reference(config, **inputs), tolerance)


def equals_itself(model: Transformer, *given: Any) -> None:
    """A model that was changed is the reference with the parameters that it exports."""
    model.eval()
    same(model(*given or PAIR), reference(model.config, weights.export(model, model.config)))


def loss(model: Transformer) -> jax.Array:
    return model.training_loss(*PAIR, smoothing=SMOOTHING)


@functools.cache
def _gradients() -> dict[str, np.ndarray]:
    tree = parameters.nest({name: array.astype(np.float64) for name, array in values().items()})
    pulled = transformer.training_loss_vjp(tree, CONFIG, *PAIR, SMOOTHING, cotangent=np.ones(()))
    return parameters.flatten(pulled["parameters"])


def right_gradients(found: Any, factor: float = 1.0, base: dict[str, np.ndarray] | None = None, tolerance: float = 1e-4) -> None:
    """A module, or a state of one, holds the reference's gradients of `loss`: times the factor, and added to the base."""
    if not isinstance(found, nnx.Module):
        model = loaded()
        nnx.update(model, found)
        found = model
    exported = weights.export(found, CONFIG)
    for name, gradient in _gradients().items():
        same(exported[name], factor * gradient + (base[name] if base else 0), tolerance)
