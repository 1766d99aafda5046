"""Encoder and decoder: the stacks of layers, from vectors to vectors."""

from collections.abc import Callable

import numpy as np

from . import checks, dropout, layers, normalization, rotary
from .arrays import Array, Gradients, Keep, Mask, Tree
from .config import TransformerConfig as Config
from .rotary import Rotation
from .scores import Scores
from .values import Memory

__all__ = ["decoder", "decoder_vjp", "encoder", "encoder_vjp"]

Layer = Callable[[int, Tree, Array], Array]  # of its index, its parameters and x
LayerVjp = Callable[[int, Tree, Array, Array], Gradients]  # of the cotangent besides


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

    def layer(index: int, own: Tree, y_bsd: Array) -> Array:
        given = _given(config, index, y_bsd, position_bs, keep)
        return layers.encoder_layer(own, config, y_bsd, mask_bhts, *given)

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
    """Backwards through the final norm and the layers; parameters and x_bsd."""

    def layer(index: int, own: Tree, y_bsd: Array) -> Array:
        given = _given(config, index, y_bsd, position_bs, keep)
        return layers.encoder_layer(own, config, y_bsd, mask_bhts, *given)

    def layer_vjp(index: int, own: Tree, y_bsd: Array, g_bsd: Array) -> Gradients:
        given = _given(config, index, y_bsd, position_bs, keep)
        return layers.encoder_layer_vjp(own, config, y_bsd, mask_bhts, *given, cotangent=g_bsd)

    found = walk_vjp(parameters, config, x_bsd, layer, layer_vjp, cotangent=cotangent)
    return {"parameters": found["parameters"], "x_bsd": found["x_btd"]}


def decoder(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    memory: Memory | None = None,
    self_mask_bhts: Mask = None,
    keep: Keep = None,
    position_bt: Array | None = None,
) -> Array:
    """The decoder layers, then the final norm if the config has one: `b t d`.

    memory: what the layers attend to; None for a decoder-only model. position_bt: of the tokens,
    for layers that rotate; without it, token t has position t. Raises ValueError on shapes that do
    not fit. Source: Vaswani et al. 2017, section 3.1.
    """

    def layer(index: int, own: Tree, y_btd: Array) -> Array:
        given = _given(config, index, y_btd, position_bt, keep, causal=True)
        return layers.decoder_layer(own, config, y_btd, memory, self_mask_bhts, *given)

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
) -> Gradients:
    """As `encoder_vjp`; parameters, x_btd and, if given, memory_bsd, to which every layer adds."""
    of_memory = {} if memory is None else {"memory_bsd": np.zeros_like(memory.vectors_bsd)}

    def layer(index: int, own: Tree, y_btd: Array) -> Array:
        given = _given(config, index, y_btd, position_bt, keep, causal=True)
        return layers.decoder_layer(own, config, y_btd, memory, self_mask_bhts, *given)

    def layer_vjp(index: int, own: Tree, y_btd: Array, g_btd: Array) -> Gradients:
        given = _given(config, index, y_btd, position_bt, keep, causal=True)
        fixed = own, config, y_btd, memory, self_mask_bhts
        inner = layers.decoder_layer_vjp(*fixed, *given, cotangent=g_btd)
        for name in of_memory:
            of_memory[name] = of_memory[name] + inner.pop(name)
        return inner

    found = walk_vjp(parameters, config, x_btd, layer, layer_vjp, cotangent=cotangent)
    return found | of_memory


def walk(parameters: Tree, config: Config, x_btd: Array, layer: Layer) -> Array:
    """`x = layer(index, parameters, x)` for every layer of the stack, then its final norm."""
    own = parameters.get("layers", {})  # a stack without layers has none
    for index in range(len(own)):
        x_btd = layer(index, own[str(index)], x_btd)
    return final_norm(parameters, config, x_btd)


def walk_vjp(
    parameters: Tree,
    config: Config,
    x_btd: Array,
    layer: Layer,
    layer_vjp: LayerVjp,
    *,
    cotangent: Array,
) -> Gradients:
    """The input of every layer again, then backwards from the final norm; parameters, x_btd."""
    inputs_btd, own = [x_btd], parameters.get("layers", {})
    for index in range(len(own)):
        inputs_btd.append(layer(index, own[str(index)], inputs_btd[-1]))
    last_btd = inputs_btd.pop()
    gradients: Gradients = {"layers": {}}
    if config.final_norm:
        inner = normalization.norm_vjp(
            parameters["final_norm"], config, last_btd, cotangent=cotangent
        )
        gradients["final_norm"], cotangent = inner["parameters"], inner["x_btd"]
    for index, y_btd in reversed([*enumerate(inputs_btd)]):
        inner = layer_vjp(index, own[str(index)], y_btd, cotangent)
        gradients["layers"][str(index)], cotangent = inner["parameters"], inner["x_btd"]
    return {"parameters": gradients, "x_btd": cotangent}


def rotation(
    config: Config, index: int, x_btd: Array, position_bt: Array | None = None
) -> Rotation | None:
    """The rotation of the queries and keys of a layer, by the positions of its tokens (ROTARY);
    None if the layer does not rotate. position_bt: without it, token t has position t.
    """
    kind = config.layer_kind(index)
    if not kind.rotary:
        return None
    if position_bt is None:
        position_bt = np.arange(x_btd.shape[1])[None]
    shape = (*x_btd.shape[:2], config.heads, config.key_size)
    checks.check_rotated(shape, position_bt.shape, str(position_bt.dtype), config.key_size)
    return rotary.rotation(config, kind, position_bt, x_btd.dtype)


def _given(
    config: Config,
    index: int,
    x_btd: Array,
    position_bt: Array | None,
    keep: Keep,
    causal: bool = False,
) -> tuple[Scores, Rotation | None, Keep]:
    """What a layer is given besides its input and its masks."""
    turned = rotation(config, index, x_btd, position_bt)
    return config.scores(index, causal), turned, dropout.part(keep, "layers", str(index))


def final_norm(parameters: Tree, config: Config, x_btd: Array) -> Array:
    """The norm after the last layer, if the config has one."""
    if not config.final_norm:
        return x_btd
    return normalization.norm(parameters["final_norm"], config, x_btd)
