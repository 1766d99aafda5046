"""Encoder and decoder: the stacks of layers, from vectors to vectors."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import layers, normalization
from .config import TransformerConfig

__all__ = ["decoder", "decoder_vjp", "encoder", "encoder_vjp"]

Tree = Mapping[str, Any]


def encoder(
    parameters: Tree,
    config: TransformerConfig,
    x_bsd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    keep: Tree | None = None,
) -> np.ndarray:
    """The stack of encoder layers, then the final norm where the config has one. Vectors in, vectors out: `b s d`.

    Raises ValueError on shapes that do not fit. Source: Vaswani et al. 2017, section 3.1.
    """
    layer_keep = (keep or {}).get("layers", {})
    for index in range(config.encoder_layers):
        x_bsd = layers.encoder_layer(
            parameters["layers"][str(index)], config, x_bsd, mask_bhts, layer_keep.get(str(index))
        )
    return final_norm(parameters, config, x_bsd)


def encoder_vjp(
    parameters: Tree,
    config: TransformerConfig,
    x_bsd: np.ndarray,
    mask_bhts: np.ndarray | None = None,
    keep: Tree | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """The input of every layer again, then backwards from the final norm to the first layer; parameters and x_bsd."""
    layer_keep = (keep or {}).get("layers", {})
    inputs_bsd = [x_bsd]
    for index in range(config.encoder_layers):
        layer = parameters["layers"][str(index)]
        inputs_bsd.append(
            layers.encoder_layer(
                layer, config, inputs_bsd[-1], mask_bhts, layer_keep.get(str(index))
            )
        )
    g_bsd, gradients = _final_norm_vjp(parameters, config, inputs_bsd.pop(), cotangent)
    for index in reversed(range(config.encoder_layers)):
        layer, site = parameters["layers"][str(index)], layer_keep.get(str(index))
        inner = layers.encoder_layer_vjp(
            layer, config, inputs_bsd[index], mask_bhts, site, cotangent=g_bsd
        )
        gradients["layers"][str(index)], g_bsd = inner["parameters"], inner["x_btd"]
    return {"parameters": gradients, "x_bsd": g_bsd}


def decoder(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    memory_bsd: np.ndarray | None = None,
    self_mask_bhts: np.ndarray | None = None,
    cross_mask_bhts: np.ndarray | None = None,
    keep: Tree | None = None,
) -> np.ndarray:
    """The stack of decoder layers, then the final norm where the config has one. Vectors in, vectors out: `b t d`.

    memory_bsd: what the layers attend to; None of a decoder alone.
    Raises ValueError on shapes that do not fit. Source: Vaswani et al. 2017, section 3.1.
    """
    layer_keep = (keep or {}).get("layers", {})
    for index in range(config.decoder_layers):
        x_btd = layers.decoder_layer(
            parameters["layers"][str(index)],
            config,
            x_btd,
            memory_bsd,
            self_mask_bhts,
            cross_mask_bhts,
            layer_keep.get(str(index)),
        )
    return final_norm(parameters, config, x_btd)


def decoder_vjp(
    parameters: Tree,
    config: TransformerConfig,
    x_btd: np.ndarray,
    memory_bsd: np.ndarray | None = None,
    self_mask_bhts: np.ndarray | None = None,
    cross_mask_bhts: np.ndarray | None = None,
    keep: Tree | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """As `encoder_vjp`; parameters, x_btd and, where there is one, memory_bsd, to which every layer adds."""
    layer_keep, masks = (keep or {}).get("layers", {}), (self_mask_bhts, cross_mask_bhts)
    inputs_btd = [x_btd]
    for index in range(config.decoder_layers):
        layer = parameters["layers"][str(index)]
        inputs_btd.append(
            layers.decoder_layer(
                layer, config, inputs_btd[-1], memory_bsd, *masks, layer_keep.get(str(index))
            )
        )
    g_btd, gradients = _final_norm_vjp(parameters, config, inputs_btd.pop(), cotangent)
    memory = {} if memory_bsd is None else {"memory_bsd": np.zeros_like(memory_bsd)}
    for index in reversed(range(config.decoder_layers)):
        layer, site = parameters["layers"][str(index)], layer_keep.get(str(index))
        inner = layers.decoder_layer_vjp(
            layer, config, inputs_btd[index], memory_bsd, *masks, site, cotangent=g_btd
        )
        gradients["layers"][str(index)], g_btd = inner["parameters"], inner["x_btd"]
        memory = {name: g_bsd + inner[name] for name, g_bsd in memory.items()}
    return {"parameters": gradients, "x_btd": g_btd, **memory}


def final_norm(parameters: Tree, config: TransformerConfig, x_btd: np.ndarray) -> np.ndarray:
    """The norm after the last layer, where the config has one."""
    return (
        normalization.layer_norm(parameters["final_norm"], x_btd, config.epsilon)
        if config.final_norm
        else x_btd
    )


def _final_norm_vjp(
    parameters: Tree, config: TransformerConfig, x_btd: np.ndarray, cotangent: np.ndarray
) -> tuple[np.ndarray, dict[str, Any]]:
    """The cotangent before the final norm, where the config has one, and the gradients of a stack whose layers are still to come."""
    if not config.final_norm:
        return cotangent, {"layers": {}}
    inner = normalization.layer_norm_vjp(
        parameters["final_norm"], x_btd, config.epsilon, cotangent=cotangent
    )
    return inner["x_btd"], {"layers": {}, "final_norm": inner["parameters"]}
