"""Defects of the stacks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference_numpy import normalization

from .defect import Defect, on_arguments

__all__ = ["DEFECTS", "fresh_norm", "other_final_norm"]


def fresh_norm(x: np.ndarray, epsilon: float) -> np.ndarray:
    """A norm as it is before any training: scale 1, offset 0."""
    width = x.shape[-1]
    return normalization.layer_norm({"scale": np.ones(width, x.dtype), "offset": np.zeros(width, x.dtype)}, x, epsilon)


def other_final_norm(original: Callable, parameters: Any, config: Any, *rest: Any, **options: Any) -> np.ndarray:
    """The stack without its final norm, or with a fresh one where it has none."""
    y = original(parameters, config.replace(final_norm=False), *rest, **options)
    return y if config.final_norm else fresh_norm(y, config.epsilon)


def _one_layer_repeated(parameters: Any) -> Any:
    return dict(parameters) | {"layers": dict.fromkeys(parameters["layers"], parameters["layers"]["0"])}


_STACKS = ("stacks.encoder", "stacks.decoder")
DEFECTS = (
    Defect(
        id="NRM10",
        title="the final norm is missing, or one is added",
        what="The stack ends without the config's final norm, or with a fresh one (scale 1, offset 0) that the config does not have.",
        shows="The output of a whole stack differs although every layer agrees. Any input shows it.",
        torch="nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width))  # the default is none; nn.Transformer always has one",
        tf="x = self.final_norm(x) if self.final_norm else x",
        jax="x = self.final_norm(x) if self.config.final_norm else x",
        evidence="pytorch#24930",
        replaces=dict.fromkeys(_STACKS, other_final_norm),
    ),
    Defect(
        id="STR1",
        title="every layer is the first one",
        what="`layers = [layer] * n` repeats one layer: all depths share the parameters of depth 0.",
        shows="The parameters count once, and the output is that of equal layers. Two layers show it.",
        torch="self.layers = nn.ModuleList(Layer(config) for _ in range(depth))  # or copy.deepcopy; not [layer] * depth",
        tf="self.blocks = [Layer(config) for _ in range(depth)]  # not [layer] * depth",
        jax="self.layers = [Layer(config) for _ in range(depth)]  # not [layer] * depth",
        evidence="pytorch-vq-vae#2",
        replaces=dict.fromkeys(_STACKS, on_arguments(parameters=_one_layer_repeated)),
    ),
)
