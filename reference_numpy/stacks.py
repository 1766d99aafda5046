"""Encoder and decoder: the stacks of layers, from vectors to vectors."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from . import checks, dropout, layers, normalization, rotary
from .arrays import Array, Gradients, Keep, Mask, Tree
from .config import TransformerConfig as Config
from .rotary import Rotation
from .values import Attending, Memory

__all__ = ["decoder", "decoder_vjp", "encoder", "encoder_vjp"]

Layer = Callable[[int, Tree, Array], Array]  # (index, parameters, x) -> x after the layer
Given = Callable[[int, Array], tuple[object, ...]]  # (index, x) -> other arguments of the layer


def walk(parameters: Tree, config: Config, x_btd: Array, layer: Layer) -> Array:
    """`x = layer(index, parameters, x)` for every layer of the stack, then its final norm."""
    own = parameters.get("layers", {})  # absent if the stack has no layers
    for index in range(len(own)):
        x_btd = layer(index, own[str(index)], x_btd)
    return final_norm(parameters, config, x_btd)


def encoder(
    parameters: Tree,
    config: Config,
    x_bsd: Array,
    mask_bhts: Mask = None,
    keep: Keep = None,
    position_bs: Array | None = None,
) -> Array:
    """The encoder layers, then the final norm if the config has one: `b s d`.

    position_bs: for layers that rotate; default, token s has position s. Raises ValueError if the
    shapes do not match. Source: Vaswani et al. 2017, section 3.1.
    """

    def layer(index: int, own: Tree, y_bsd: Array) -> Array:
        told = attending(config, index, y_bsd, mask_bhts, position_bs)
        return layers.encoder_layer(own, config, y_bsd, told, _of_layer(keep, index))

    return walk(parameters, config, x_bsd, layer)


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
    """Backward pass through final norm and layers. Returns parameters and x_bsd."""

    def given(index: int, y_bsd: Array) -> tuple[object, ...]:
        told = attending(config, index, y_bsd, mask_bhts, position_bs)
        return told, _of_layer(keep, index)

    pair = layers.encoder_layer, layers.encoder_layer_vjp
    found = walk_vjp(parameters, config, x_bsd, pair, given, cotangent=cotangent)
    return {"parameters": found["parameters"], "x_bsd": found["x_btd"]}


def decoder(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    memory: Memory | None = None,
    self_mask_bhts: Mask = None,
    keep: Keep = None,
    position_bt: Array | None = None,
    routed: layers.Routed = None,
) -> Array:
    """The decoder layers, then the final norm if the config has one: `b t d`.

    memory: the vectors attended to; None for a decoder-only model. position_bt: for layers that
    rotate; default, token t has position t. routed: collects the logits of the layers' routers.
    Raises ValueError if the shapes do not match. Source: Vaswani et al. 2017, section 3.1.
    """
    others: dict[str, Any] = {} if routed is None else {"routed": routed}

    def layer(index: int, own: Tree, y_btd: Array) -> Array:
        told = attending(config, index, y_btd, self_mask_bhts, position_bt, causal=True)
        given = memory, told, _of_layer(keep, index)
        return layers.decoder_layer(own, config, y_btd, *given, **others)

    return walk(parameters, config, x_btd, layer)


def decoder_vjp(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    memory: Memory | None = None,
    self_mask_bhts: Mask = None,
    keep: Keep = None,
    position_bt: Array | None = None,
    *,
    cotangent: Array,
    routed_lbtx: Array | None = None,
) -> Gradients:
    """As `encoder_vjp`. Returns parameters, x_btd and, summed over layers, memory_bsd if any.

    routed_lbtx: the cotangents of the layers' router logits.
    """

    def given(index: int, y_btd: Array) -> tuple[object, ...]:
        told = attending(config, index, y_btd, self_mask_bhts, position_bt, causal=True)
        return memory, told, _of_layer(keep, index)

    pair = layers.decoder_layer, layers.decoder_layer_vjp
    routed = dict[int, Array]()
    if routed_lbtx is not None:
        mixed = filter(config.has_experts, range(config.decoder_layers))
        routed = dict(zip(mixed, routed_lbtx, strict=True))
    return walk_vjp(parameters, config, x_btd, pair, given, cotangent=cotangent, routed=routed)


def final_norm(parameters: Tree, config: Config, x_btd: Array) -> Array:
    """Applies the norm after the last layer, if the config has one."""
    if not config.final_norm:
        return x_btd
    return normalization.norm(parameters.get("final_norm", {}), config, x_btd)


def rotation(
    config: Config, index: int, x_btd: Array, position_bt: Array | None = None
) -> Rotation | None:
    """Returns the rotation of a layer's queries and keys (ROTARY), or None if it does not rotate.

    position_bt: default, token t has position t.
    """
    kind = config.layer_kind(index)
    if not kind.rotary:
        return None
    if position_bt is None:
        position_bt = np.arange(x_btd.shape[1])[None]
    shape = (*x_btd.shape[:2], config.heads, config.key_size)
    checks.check_rotated(shape, position_bt.shape, str(position_bt.dtype), config.key_size)
    return rotary.rotation(config, kind, position_bt, x_btd.dtype)


def attending(
    config: Config,
    index: int,
    x_btd: Array,
    mask_bhts: Mask,
    position_bt: Array | None,
    causal: bool = False,
) -> Attending:
    """Returns how the self-attention of a layer attends: mask, scores and rotation."""
    turned = rotation(config, index, x_btd, position_bt)
    return Attending(mask_bhts, config.scores(index, causal), turned)


def _of_layer(keep: Keep, index: int) -> Keep:
    return dropout.part(keep, "layers", str(index))


def walk_vjp(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    pair: tuple[Callable[..., Array], Callable[..., Gradients]],
    given: Given,
    *,
    cotangent: Array,
    routed: Mapping[int, Array] = MappingProxyType({}),
) -> Gradients:
    """Recomputes the input of every layer, then runs backward from the final norm.

    pair: the function of a layer and its vjp. routed: by layer, the cotangent of its router's
    logits. Returns parameters, x_btd, and the sums of anything else that the layers return.
    """
    inputs_btd, own = [x_btd], parameters.get("layers", {})
    for index in range(len(own)):
        y_btd = inputs_btd[-1]
        inputs_btd.append(pair[0](own[str(index)], config, y_btd, *given(index, y_btd)))
    last_btd = inputs_btd.pop()
    others, gradients = Gradients(), Gradients(layers={})
    if config.final_norm:
        norm = parameters.get("final_norm", {})
        inner = normalization.norm_vjp(norm, config, last_btd, cotangent=cotangent)
        gradients["final_norm"], cotangent = inner["parameters"], inner["x_btd"]
    for index, y_btd in reversed([*enumerate(inputs_btd)]):
        fixed = own[str(index)], config, y_btd
        own_btx = {"routed_btx": routed[index]} if index in routed else {}
        inner = pair[1](*fixed, *given(index, y_btd), cotangent=cotangent, **own_btx)
        gradients["layers"][str(index)] = inner.pop("parameters")
        cotangent = inner.pop("x_btd")
        for name, g in inner.items():
            others[name] = others.get(name, np.zeros(g.shape, g.dtype)) + g
    return {"parameters": gradients, "x_btd": cotangent, **others}
