"""Cases of the embedding, the positions, their encoding, and the logits."""

from collections.abc import Iterator

import numpy as np

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged, rng, shrinking_padding


def cases(build: Builder) -> Iterator[Case]:
    """Yields cases from tokens and positions to vectors, and from vectors to tokens."""
    yield from _embedding_cases(build)
    yield from _positional_encoding_cases(build)


def _embedding_cases(build: Builder) -> Iterator[Case]:
    """Yields ids and soft one-hot rows, scaled and not; the padding id among the tokens; one position."""
    scaled, plain = build.config(), build.config("keras_lab")
    vocabulary = scaled.source_vocabulary
    ids = rng("embedding ids").integers(0, vocabulary, (B, T))
    ids[0, :2] = 2  # the padding id
    yield build.make("embedding", "ids", scaled, "EMB1 EMB7 EMB12 EMB13 EMB14", token=ids)
    yield build.make("embedding", "ids_unscaled", plain, token=ids)
    yield build.make("embedding", "one_token", scaled, "EMB1", token=ids[:, :1])
    yield build.make("embedding", "int32_ids", scaled, token=ids.astype(np.int32))
    yield build.make("embedding", "every_id", scaled, token=np.arange(vocabulary)[None])
    soft = rng("embedding soft").dirichlet(np.ones(vocabulary), (B, T))
    yield build.make("embedding", "soft_rows", plain, token=soft)
    yield build.make("embedding", "one_hot_rows", scaled, "EMB1", token=np.eye(vocabulary)[ids])
    yield build.make("embedding", "batch_0", scaled, token=ids[:0])
    yield build.make("logits", "bias", scaled, "EMB2 EMB8 EMB9 OUT1 PRC1 PRC5", x_btd="b t d")
    yield build.make("logits", "no_bias", plain, "EMB2 PRC1", x_btd="b t d")
    yield build.make("logits", "one_token", scaled, "EMB2", x_btd="1 1 d")


def _positional_encoding_cases(build: Builder) -> Iterator[Case]:
    """Yields left and right padding; even and odd widths; one position, many, and far ones; more positions than rows."""
    odd, even = build.config(), build.config(model_width=12)
    yield build.make("token_positions", "no_padding", odd, mask_bt=np.ones((B, T), bool))
    yield build.make("token_positions", "right_padding", odd, "PE22 PE23", mask_bt=ragged(B, S))
    yield build.make("token_positions", "left_padding", odd, "PE11", mask_bt=left_padding(4, S))
    yield build.make("token_positions", "shrinking_padding", odd, "PE11 PE27", mask_bt=shrinking_padding(B, S))
    yield build.make("token_positions", "gap", odd, "PE11 PE22 PE23", mask_bt=np.array([[False, True, False, True, False]]))
    steps = np.tile(np.arange(S), (B, 1))
    yield build.make("positional_encoding", "even_width", even, "PE1 PE2 PE3 PE4 PE5 PE6 PE7 PE9 PE10 PE20 PE24 PRC2", position_bt=steps)
    yield build.make("positional_encoding", "odd_width", odd, "PE1 PE2 PE3 PE4 PE5 PE6 PE7 PE8 PE9 PE10 PE20 PRC2", position_bt=steps)
    yield build.make("positional_encoding", "one_position", even, "PE9 PE10", position_bt=np.zeros((B, 1), int))
    yield build.make("positional_encoding", "width_1", build.config(model_width=1), position_bt=steps)
    yield build.make("positional_encoding", "long", even, "PE1 PE2 PE6 PE7", position_bt=np.arange(200)[None])
    yield build.make("positional_encoding", "far", even, "PE21", position_bt=np.array([[9_999, 10_000, 65_537, 1_000_000]]))
    yield build.make("positional_encoding", "scattered", odd, "PE5 PE9", position_bt=np.array([[0, 0, 1, 2], [3, 1, 4, 1]]))
