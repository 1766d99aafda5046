"""The input of the first layer of a stack: the sum of token, position and segment embeddings.

The sum is normalized if the config says so. Rotary positions are applied in attention, not here.
"""

import numpy as np

from . import checks, embedding, mask, normalization, positional_encoding
from .arrays import Array, Gradients, Mask, Tree, bounds
from .config import TransformerConfig as Config
from .values import Text

__all__ = ["embed", "embed_vjp", "masked_positions", "table"]


def masked_positions(
    config: Config, side: str, token: Array, mask_bt: Mask = None
) -> tuple[Array, Array]:
    """Returns which tokens are real, by default all but the padding id, and their positions.

    Both are `b t`. side: "source" or "target". Raises ValueError on invalid tokens or masks, and on
    more tokens than positions.
    """
    vocabulary = config.source_vocabulary if side == "source" else config.target_vocabulary
    checks.check_tokens("token", token.shape, str(token.dtype), vocabulary)
    checks.check_length(token.shape[1], config.max_positions)
    mask_bt = real(config, Text(token, mask_bt))
    checks.check_token_mask(f"{side} mask", mask_bt.shape, str(mask_bt.dtype), token.shape[:2])
    return mask_bt, positional_encoding.token_positions(mask_bt, config.position_start)


def real(config: Config, text: Text) -> Array:
    """Returns which tokens are real: the text's mask, or by default every id but the padding id."""
    return mask.token_mask(text.ids, config.padding_id) if text.mask_bt is None else text.mask_bt


def embed(
    parameters: Tree,
    config: Config,
    side: str,
    token: Array,
    position_bt: Array,
    segment_bt: Array | None = None,
) -> Array:
    """`norm(embedding(token) + position + segment)`, `b t d`; norm, position and segment are
    optional.

    The input of the first layer of the encoder (side "source") or decoder ("target"), before
    dropout. segment_bt: default 0.
    """
    x_btd = summed(parameters, config, side, token, position_bt, segment_bt)
    if not config.embedding_norm:
        return x_btd
    return normalization.norm(parameters.get(f"{side}_embedding_norm", {}), config, x_btd)


def embed_vjp(
    parameters: Tree,
    config: Config,
    side: str,
    token: Array,
    position_bt: Array,
    segment_bt: Array | None = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Returns parameters, and token if it is soft. Sinusoidal positions are constants."""
    g_btd, gradients = cotangent, {}
    if config.embedding_norm:
        x_btd = summed(parameters, config, side, token, position_bt, segment_bt)
        name = f"{side}_embedding_norm"
        own = parameters.get(name, {})
        normed = normalization.norm_vjp(own, config, x_btd, cotangent=g_btd)
        gradients[name], g_btd = normed["parameters"], normed["x_btd"]
    name = table(config, side)
    embedded = embedding.embedding_vjp(parameters[name], token, *_scale(config), cotangent=g_btd)
    gradients[name] = embedded["parameters"]
    if config.positions == "learned":
        name = f"{side}_position_embedding"
        inner = positional_encoding.position_embedding_vjp(
            parameters[name], position_bt, config.position_offset, cotangent=g_btd
        )
        gradients[name] = inner["parameters"]
    if config.segments and side == "source":
        name, segment_bt = "source_segment_embedding", segments(config, token, segment_bt)
        inner = embedding.segment_embedding_vjp(parameters[name], segment_bt, cotangent=g_btd)
        gradients[name] = inner["parameters"]
    return {"parameters": gradients} | ({side: embedded["token"]} if "token" in embedded else {})


def summed(
    parameters: Tree,
    config: Config,
    side: str,
    token: Array,
    position_bt: Array,
    segment_bt: Array | None,
) -> Array:
    """`embedding(token) + position + segment`."""
    if segment_bt is not None and not (config.segments and side == "source"):
        checks.check_segments(0, segment_bt.shape, str(segment_bt.dtype), token.shape)
    x_btd = embedding.embedding(parameters[table(config, side)], token, *_scale(config))
    if config.positions == "learned":
        own, offset = parameters[f"{side}_position_embedding"], config.position_offset
        x_btd = x_btd + positional_encoding.position_embedding(own, position_bt, offset)
    elif config.positions == "sinusoidal":
        x_btd = x_btd + positional_encoding.positional_encoding(
            position_bt + config.position_offset,
            config.model_width,
            x_btd.dtype,
            config.sinusoid_layout,
        )
    if config.segments and side == "source":
        own = parameters["source_segment_embedding"]
        x_btd = x_btd + embedding.segment_embedding(own, segments(config, token, segment_bt))
    return x_btd


def segments(config: Config, token: Array, segment_bt: Array | None) -> Array:
    """Returns the segment of every token, by default 0."""
    if segment_bt is None:
        return np.zeros(token.shape[:2], np.int64)
    shapes = segment_bt.shape, str(segment_bt.dtype), token.shape
    checks.check_segments(config.segments, *shapes, *bounds(segment_bt))
    return segment_bt


def _scale(config: Config) -> tuple[bool, bool, float]:
    return config.scale_embedding, config.round_embedding_scale, config.embedding_multiplier


def table(config: Config, side: str) -> str:
    """Returns the name of the source or target embedding; the two may be shared."""
    shared = config.share_embeddings and config.encoder_layers
    return "source_embedding" if side == "source" or shared else "target_embedding"
