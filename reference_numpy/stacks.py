"""Encoder and decoder: the stacks of layers, from vectors to vectors."""

import numpy as np

from . import dropout, layers, normalization
from .arrays import Array, Gradients, Keep, Mask, Tree
from .config import TransformerConfig as Config

__all__ = ["decoder", "decoder_vjp", "encoder", "encoder_vjp"]


def encoder(
    parameters: Tree,
    config: Config,
    x_bsd: Array,
    mask_bhts: Mask = None,
    keep: Keep = None,
    position_bs: Array | None = None,
) -> Array:
    """The encoder layers, then the final norm if the config has one: `b s d`.

    position_bs: of the tokens, for layers that rotate; without it, token s has position s. Raises
    ValueError on shapes that do not fit. Source: Vaswani et al. 2017, section 3.1.
    """
    for index in range(config.encoder_layers):
        layer, layer_keep = _layer(parameters, keep, index)
        x_bsd = layers.encoder_layer(
            layer, config, x_bsd, mask_bhts, layer_keep, position_bs, index
        )
    return final_norm(parameters, config, x_bsd)


def encoder_vjp(
    parameters: Tree,
    config: Config,
    x_bsd: Array,
    mask_bhts: Mask = None,
    keep: Keep = None,
    position_bs: Array | None = None,
    *,
    cotangent: Array,
) -> Gradients:
    """The input of every layer again, then backwards from the final norm; parameters and x_bsd."""
    inputs_bsd = [x_bsd]
    for index in range(config.encoder_layers):
        layer, layer_keep = _layer(parameters, keep, index)
        x_bsd = layers.encoder_layer(
            layer, config, x_bsd, mask_bhts, layer_keep, position_bs, index
        )
        inputs_bsd.append(x_bsd)
    g_bsd, gradients = _final_norm_vjp(parameters, config, inputs_bsd.pop(), cotangent)
    for index in reversed(range(config.encoder_layers)):
        layer, layer_keep = _layer(parameters, keep, index)
        given = layer, config, inputs_bsd[index], mask_bhts, layer_keep, position_bs, index
        inner = layers.encoder_layer_vjp(*given, cotangent=g_bsd)
        gradients["layers"][str(index)], g_bsd = inner["parameters"], inner["x_btd"]
    return {"parameters": gradients, "x_bsd": g_bsd}


def decoder(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    memory_bsd: Array | None = None,
    self_mask_bhts: Mask = None,
    cross_mask_bhts: Mask = None,
    keep: Keep = None,
    position_bt: Array | None = None,
) -> Array:
    """The decoder layers, then the final norm if the config has one: `b t d`.

    memory_bsd: what the layers attend to; None for a decoder-only model. position_bt: of the
    tokens, for layers that rotate; without it, token t has position t. Raises ValueError on shapes
    that do not fit. Source: Vaswani et al. 2017, section 3.1.
    """
    memory = memory_bsd, self_mask_bhts, cross_mask_bhts
    for index in range(config.decoder_layers):
        layer, layer_keep = _layer(parameters, keep, index)
        x_btd = layers.decoder_layer(layer, config, x_btd, *memory, layer_keep, position_bt, index)
    return final_norm(parameters, config, x_btd)


def decoder_vjp(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    memory_bsd: Array | None = None,
    self_mask_bhts: Mask = None,
    cross_mask_bhts: Mask = None,
    keep: Keep = None,
    position_bt: Array | None = None,
    *,
    cotangent: Array,
) -> Gradients:
    """As `encoder_vjp`; parameters, x_btd and, if given, memory_bsd, to which every layer adds."""
    memory = memory_bsd, self_mask_bhts, cross_mask_bhts
    inputs_btd = [x_btd]
    for index in range(config.decoder_layers):
        layer, layer_keep = _layer(parameters, keep, index)
        x_btd = layers.decoder_layer(layer, config, x_btd, *memory, layer_keep, position_bt, index)
        inputs_btd.append(x_btd)
    g_btd, gradients = _final_norm_vjp(parameters, config, inputs_btd.pop(), cotangent)
    of_memory = {} if memory_bsd is None else {"memory_bsd": np.zeros_like(memory_bsd)}
    for index in reversed(range(config.decoder_layers)):
        layer, layer_keep = _layer(parameters, keep, index)
        given = layer, config, inputs_btd[index], *memory, layer_keep, position_bt, index
        inner = layers.decoder_layer_vjp(*given, cotangent=g_btd)
        gradients["layers"][str(index)], g_btd = inner["parameters"], inner["x_btd"]
        of_memory = {name: g_bsd + inner[name] for name, g_bsd in of_memory.items()}
    return {"parameters": gradients, "x_btd": g_btd, **of_memory}


def _layer(parameters: Tree, keep: Keep, index: int) -> tuple[Tree, Keep]:
    """The parameters and the keep masks of a layer."""
    return parameters["layers"][str(index)], dropout.part(keep, "layers", str(index))


def final_norm(parameters: Tree, config: Config, x_btd: Array) -> Array:
    """The norm after the last layer, if the config has one."""
    if not config.final_norm:
        return x_btd
    return normalization.norm(parameters["final_norm"], config, x_btd)


def _final_norm_vjp(
    parameters: Tree, config: Config, x_btd: Array, cotangent: Array
) -> tuple[Array, Gradients]:
    """The cotangent before the final norm, and the gradients of a stack, still without layers."""
    if not config.final_norm:
        return cotangent, {"layers": {}}
    inner = normalization.norm_vjp(parameters["final_norm"], config, x_btd, cotangent=cotangent)
    return inner["x_btd"], {"layers": {}, "final_norm": inner["parameters"]}
