"""The input of the first layer of a stack: the sum of token, position and segment embeddings.

The sum is normalized if the config says so. Rotary positions are applied in attention, not here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from reference_numpy import TransformerConfig, checks
from reference_numpy.suggestions import known

from . import mask
from .embedding import Embedding, SegmentEmbedding
from .framework import attached_mask, check_dense, keras, sizes
from .normalization import Norm, norm
from .positional_encoding import PositionEmbedding, positional_encoding, token_positions
from .values import Ids, Text

__all__ = ["embed", "masked_positions", "table"]

# The first argument of a model call may contain the target too.
Given: TypeAlias = Ids | Mapping[str, tf.Tensor] | Sequence[Ids]
# Names of the tensors that a mapping, as `fit` passes it, may contain.
OF_SOURCE, OF_TARGET = ("source", "source_mask_bs", "segment_bs"), ("target", "target_mask_bt")


class InputLayers(NamedTuple):
    """The embeddings that one side of a model adds up, and their norm; None for absent layers."""

    embedding: Embedding
    position_embedding: PositionEmbedding | None
    segment_embedding: SegmentEmbedding | None
    norm: Norm | None

    @classmethod
    def new(
        cls, config: TransformerConfig, side: str, dtype: str | keras.DTypePolicy
    ) -> "InputLayers":
        """Creates the layers of a side, with no embedding for a target that shares the source's."""
        width, rounded = config.model_width, config.round_embedding_scale
        scale = config.scale_embedding, rounded, config.embedding_multiplier
        vocabulary = config.source_vocabulary if side == "source" else config.target_vocabulary
        embedding: Any = None
        position_embedding = segment_embedding = embedding_norm = None
        if (name := f"{side}_embedding") == table(config, side):
            embedding = Embedding(vocabulary, width, *scale, dtype=dtype, name=name)
        if config.positions == "learned":
            rows, name = config.sizes["p"], f"{side}_position_embedding"
            position_embedding = PositionEmbedding(
                rows, width, config.position_offset, dtype=dtype, name=name
            )
        if config.segments and side == "source":
            name = "source_segment_embedding"
            segment_embedding = SegmentEmbedding(config.segments, width, dtype=dtype, name=name)
        if config.embedding_norm:
            embedding_norm = norm(config, dtype=dtype, name=f"{side}_embedding_norm")
        return cls(embedding, position_embedding, segment_embedding, embedding_norm)

    @classmethod
    def of(cls, model: keras.Model, side: str) -> "InputLayers":
        """Returns the layers of one side; source and target may share an embedding."""
        embedding = getattr(model, table(model.config, side))
        position_embedding = getattr(model, f"{side}_position_embedding")
        segment_embedding = model.source_segment_embedding if side == "source" else None
        norm = getattr(model, f"{side}_embedding_norm")
        return cls(embedding, position_embedding, segment_embedding, norm)


def texts(
    config: TransformerConfig, source: Given | None = None, target: Ids | None = None
) -> tuple[Text | None, Text | None]:
    """Returns source and target of a model call, or their shapes, however they were passed.

    The first argument may contain both: a pair, or a mapping with names in OF_SOURCE and OF_TARGET;
    for a decoder-only model it is the target. Raises ValueError on other names, duplicate or
    missing inputs, and tensors that are not dense.
    """
    first, second = source, Text.of(target)
    if isinstance(first, Mapping):
        known("input", first, OF_SOURCE + OF_TARGET)
        given = dict(zip(OF_TARGET, second or (), strict=False))
        if twice := [name for name in first if given.get(name) is not None]:
            raise ValueError(
                f"an input must be passed once; got {', '.join(twice)} in the mapping and as an "
                "argument"
            )
        given |= first
        ids, mask_bs, segment_bs = (given.get(name) for name in OF_SOURCE)
        source = Text.of(ids, mask_bs, segment_bs)
        target = Text.of(given.get("target"), given.get("target_mask_bt"))
    elif second is None and not config.encoder_layers:
        source, target = None, first
    elif second is None and isinstance(first, (list, tuple)) and len(first) == 2:
        source, target = first if config.decoder_layers else (first, None)
    source, target = Text.of(source), Text.of(target)
    lacks = second is None and (source is None or source.ids is None)
    if config.cross_attention and (target is None or target.ids is None or lacks):
        came = sorted(first) if isinstance(first, Mapping) else type(first).__name__
        raise ValueError(
            "the model needs source and target: two arguments, a pair, or a mapping with these "
            f"names; got {came}"
        )
    for text in filter(None, (source, target)):
        check_dense(text.ids, text.mask, text.segment)
    return source, target


def checked_texts(
    config: TransformerConfig, source: Given | None, target: Ids | None
) -> tuple[Text | None, Text | None]:
    """Returns the `texts` of a call. Raises ValueError as `check_given` does."""
    source, target = texts(config, source, target)
    check_given(config, source, target)
    return source, target


def check_given(config: TransformerConfig, source: Text | None, target: Text | None) -> None:
    """Raises ValueError on inputs that the config does not have, and on missing ones."""
    of_source = dict(zip(OF_SOURCE, source or Text(None), strict=True))
    ids, mask_bt, _ = target or Text(None)
    checks.check_source_given(config.encoder_layers, **of_source)
    checks.check_target_given(config.decoder_layers, ids, target_mask_bt=mask_bt)
    if source is not None and target is not None:
        checks.check_same_batch(source=source.ids.shape, target=ids.shape)


def real_tokens(config: TransformerConfig, text: Text) -> tf.Tensor | None:
    """Returns which tokens are real, `b t`; None: all. Uses the text's mask, else the Keras mask,
    else every id but the padding id.
    """
    mask_bt = attached_mask(text.ids) if text.mask is None else text.mask
    if mask_bt is not None or config.padding_id is None or len(text.ids.shape) == 3:
        return mask_bt
    return mask.token_mask(text.ids, config.padding_id)


def target_mask(
    config: TransformerConfig, target: tf.Tensor, mask_bt: tf.Tensor | None
) -> tf.Tensor:
    """Returns which target tokens are real, by default every id but the padding id. Raises
    ValueError if the mask does not match.
    """
    if mask_bt is None:
        return mask.token_mask(target, config.padding_id)
    mask.check("target mask", mask_bt := tf.convert_to_tensor(mask_bt), target.shape[:2])
    return mask_bt


def masked_positions(
    config: TransformerConfig, side: str, token: tf.Tensor, mask_bt: tf.Tensor | None = None
) -> tuple[tf.Tensor | None, tf.Tensor]:
    """Returns `real_tokens` and the position of each token, `b t`. side: "source" or "target".

    Raises ValueError if masks do not match, and on more tokens than positions.
    """
    checks.check_length(token.shape[1], config.max_positions)
    mask_bt = real_tokens(config, Text(token, mask_bt))
    if mask_bt is None:
        shape = tf.shape(token, out_type=tf.int64)[:2]
        return None, tf.broadcast_to(tf.range(shape[1]), shape)
    mask.check(f"{side} mask", mask_bt, token.shape[:2])
    return mask_bt, token_positions(mask_bt, config.position_start)


def embed(
    model: keras.Model,
    side: str,
    token: tf.Tensor,
    position_bt: tf.Tensor,
    segment_bt: tf.Tensor | None = None,
    position_pd: tf.Tensor | None = None,
) -> tf.Tensor:
    """`norm(embedding(token) + position + segment)`, `b t d`; the config sets norm and segments.

    The input of the first layer of the encoder (side "source") or decoder ("target"), before
    dropout. segment_bt: default 0. position_pd: the vectors of all positions, if already computed.
    """
    config, layers = model.config, InputLayers.of(model, side)
    x_btd = layers.embedding(token)
    if position_pd is None and layers.position_embedding is not None:
        x_btd += layers.position_embedding(position_bt)
    elif config.positions in ("learned", "sinusoidal"):
        if position_pd is None:
            # Every position is less than the length, so the sines of one row serve the whole batch.
            position_pd = sinusoids(config, sizes(token)[1], x_btd.dtype)
        x_btd += tf.gather(position_pd, position_bt)
    if layers.segment_embedding is not None:
        if segment_bt is None:
            segment_bt = tf.zeros(tf.shape(token)[:2], tf.int32)
        x_btd += layers.segment_embedding(segment_bt)
    return x_btd if layers.norm is None else layers.norm(x_btd)


def sinusoids(config: TransformerConfig, length: int | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the vectors of the first positions, `p d`."""
    position_p = tf.range(length) + config.position_offset
    return positional_encoding(position_p, config.model_width, dtype, config.sinusoid_layout)


def table(config: TransformerConfig, side: str) -> str:
    """Returns the canonical name of the source or target embedding; the two may be shared."""
    return (
        "source_embedding"
        if side == "source" or (config.share_embeddings and config.encoder_layers)
        else "target_embedding"
    )
