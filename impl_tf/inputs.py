"""The input of a stack: the sum of token embedding, position and segment, and its norm.

Rotary positions are not added here: attention rotates its queries and keys by them.
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

# The first argument of a model's call may hold the other.
Given: TypeAlias = Ids | Mapping[str, tf.Tensor] | Sequence[Ids]
# The names of the tensors that a mapping, as `fit` hands it over, may hold.
OF_SOURCE, OF_TARGET = ("source", "source_mask_bs", "segment_bs"), ("target", "target_mask_bt")


class InputLayers(NamedTuple):
    """The layers of a side whose outputs are added up and normalised; None: the config has none."""

    embedding: Embedding
    position_embedding: PositionEmbedding | None
    segment_embedding: SegmentEmbedding | None
    norm: Norm | None

    @classmethod
    def new(
        cls, config: TransformerConfig, side: str, dtype: str | keras.DTypePolicy
    ) -> "InputLayers":
        """New layers of a side; no embedding for a target that has the source's."""
        width, scale = config.model_width, (config.scale_embedding, config.round_embedding_scale)
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
        """The layers of a Transformer's side; source and target may share the embedding."""
        embedding = getattr(model, table(model.config, side))
        position_embedding = getattr(model, f"{side}_position_embedding")
        segment_embedding = model.source_segment_embedding if side == "source" else None
        norm = getattr(model, f"{side}_embedding_norm")
        return cls(embedding, position_embedding, segment_embedding, norm)


def texts(
    config: TransformerConfig, source: Given | None = None, target: Ids | None = None
) -> tuple[Text | None, Text | None]:
    """Source and target of a model's call (or their shapes), whichever way they are handed over.

    The first argument may hold others: a pair, or a mapping of names in OF_SOURCE and OF_TARGET; to
    a decoder-only model it is the target. Raises ValueError on other names, on what is given twice,
    without a target, and on tensors that are not dense.
    """
    first, second = source, Text.of(target)
    if isinstance(first, Mapping):
        known("input", first, OF_SOURCE + OF_TARGET)
        given = dict(zip(OF_TARGET, second or (), strict=False))
        if twice := [name for name in first if given.get(name) is not None]:
            raise ValueError(
                f"an input must be given once; got {', '.join(twice)} in the mapping and as an "
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
            "the model must be given source and target: as two arguments, a pair, or a mapping of "
            f"these names; got {came}"
        )
    for text in filter(None, (source, target)):
        check_dense(text.ids, text.mask, text.segment)
    return source, target


def checked_texts(
    config: TransformerConfig, source: Given | None, target: Ids | None
) -> tuple[Text | None, Text | None]:
    """`texts` of a call. Raises ValueError as `check_given`."""
    source, target = texts(config, source, target)
    check_given(config, source, target)
    return source, target


def check_given(config: TransformerConfig, source: Text | None, target: Text | None) -> None:
    """Raises ValueError on inputs that the config does not have, or has and are not given."""
    of_source = dict(zip(OF_SOURCE, source or Text(None), strict=True))
    ids, mask_bt, _ = target or Text(None)
    checks.check_source_given(config.encoder_layers, **of_source)
    checks.check_target_given(config.decoder_layers, ids, target_mask_bt=mask_bt)
    if source is not None and target is not None:
        checks.check_same_batch(source=source.ids.shape, target=ids.shape)


def real_tokens(config: TransformerConfig, text: Text) -> tf.Tensor | None:
    """Which tokens are real, `b t`; None: all. Without a mask in the text, Keras' mask decides, or
    every id but the padding id is real."""
    mask_bt = attached_mask(text.ids) if text.mask is None else text.mask
    if mask_bt is not None or config.padding_id is None or len(text.ids.shape) == 3:
        return mask_bt
    return mask.token_mask(text.ids, config.padding_id)


def target_mask(
    config: TransformerConfig, target: tf.Tensor, mask_bt: tf.Tensor | None
) -> tf.Tensor:
    """Which tokens of a target are real, by default every id but the padding id. Raises ValueError
    on a mask that does not fit."""
    if mask_bt is None:
        return mask.token_mask(target, config.padding_id)
    mask.check("target mask", mask_bt := tf.convert_to_tensor(mask_bt), target.shape[:2])
    return mask_bt


def masked_positions(
    config: TransformerConfig, side: str, token: tf.Tensor, mask_bt: tf.Tensor | None = None
) -> tuple[tf.Tensor | None, tf.Tensor]:
    """`real_tokens`, and the position of each token, `b t`. side: "source" or "target".

    Raises ValueError on masks that do not fit, and on more tokens than there are positions.
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
    """`norm(embedding(token) + position + segment)`, `b t d`: the input of the encoder (side:
    "source") or the decoder ("target") before dropout, with norm and segments by config.

    segment_bt: by default 0. position_pd: the vectors of all positions, if they are known.
    """
    config, layers = model.config, InputLayers.of(model, side)
    x_btd = layers.embedding(token)
    if position_pd is None and layers.position_embedding is not None:
        x_btd += layers.position_embedding(position_bt)
    elif config.positions in ("learned", "sinusoidal"):
        if position_pd is None:
            # No position reaches the length, so the sines of one row serve the whole batch.
            position_pd = sinusoids(config, sizes(token)[1], x_btd.dtype)
        x_btd += tf.gather(position_pd, position_bt)
    if layers.segment_embedding is not None:
        if segment_bt is None:
            segment_bt = tf.zeros(tf.shape(token)[:2], tf.int32)
        x_btd += layers.segment_embedding(segment_bt)
    return x_btd if layers.norm is None else layers.norm(x_btd)


def sinusoids(config: TransformerConfig, length: int | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The vectors of the first positions, `p d`."""
    return positional_encoding(tf.range(length), config.model_width, dtype, config.sinusoid_layout)


def table(config: TransformerConfig, side: str) -> str:
    """The canonical name of the token embedding of source or target, which may be one."""
    return (
        "source_embedding"
        if side == "source" or (config.share_embeddings and config.encoder_layers)
        else "target_embedding"
    )
