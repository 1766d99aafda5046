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
from reference_numpy import TransformerConfig, parameters, transformer

from . import Actions
from .jax_data import CONFIG, PAIR, SMOOTHING, SOURCE, TARGET
from .small import Small

SMALL = Small(CONFIG, SOURCE, TARGET, np.float32, 1e-4)
values, reference, same, right = SMALL.values, SMALL.reference, SMALL.same, SMALL.right


def loaded(config: TransformerConfig = CONFIG, kind: type[Transformer] = Transformer, **options: Any) -> Transformer:
    """A model of the config that holds them, in evaluation."""
    model = kind(config, **({"rngs": nnx.Rngs(0)} | options))
    weights.load(model, values(config, jax.tree.leaves(nnx.state(model, nnx.Param))[0].dtype), config)
    model.eval()
    return model


def other() -> Transformer:
    """A model with other parameters."""
    model = Transformer(CONFIG, rngs=nnx.Rngs(7))
    model.eval()
    return model


ACTIONS = Actions("jax", model=loaded, other=other)
topic = ACTIONS.topic


def differs(one: Any, other: Any) -> None:
    assert np.abs(np.asarray(one, np.float64) - np.asarray(other, np.float64)).max() > 1e-3


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
