"""Cases of the positions and their encoding."""

from collections.abc import Iterator

import numpy as np

from ..case import Case
from .build import B, Builder, S, T, left_padding, ragged

__all__ = ["cases"]


def cases(build: Builder) -> Iterator[Case]:
    """Left and right padding; even and odd widths; one position, many, and far ones; more positions than rows."""
    odd, even = build.config(), build.config(model_width=12)
    yield build.make("token_positions", "no_padding", odd, mask_bt=np.ones((B, T), bool))
    yield build.make("token_positions", "right_padding", odd, mask_bt=ragged(B, S))
    yield build.make("token_positions", "left_padding", odd, "PE11", mask_bt=left_padding(4, S))
    yield build.make("token_positions", "gap", odd, "PE11", mask_bt=np.array([[False, True, False, True, False]]))
    steps = np.tile(np.arange(S), (B, 1))
    yield build.make("positional_encoding", "even_width", even, "PE1 PE2 PE3 PE4 PE5 PE6 PE7 PE9 PE10", position_bt=steps)
    yield build.make("positional_encoding", "odd_width", odd, "PE1 PE2 PE3 PE4 PE5 PE6 PE7 PE8 PE9 PE10", position_bt=steps)
    yield build.make("positional_encoding", "one_position", even, "PE9 PE10", position_bt=np.zeros((B, 1), int))
    yield build.make("positional_encoding", "width_1", build.config(model_width=1), position_bt=steps)
    yield build.make("positional_encoding", "long", even, "PE1 PE2 PE6 PE7", position_bt=np.arange(200)[None])
    yield build.make("positional_encoding", "far", even, position_bt=np.array([[9_999, 10_000, 65_537, 1_000_000]]))
    yield build.make("positional_encoding", "scattered", odd, "PE5 PE9", position_bt=np.array([[0, 0, 1, 2], [3, 1, 4, 1]]))
