"""Cases of the positions and their encoding."""

from collections.abc import Iterator

import numpy as np

from ..case import Case
from .build import B, S, T, config, left_padding, make, ragged

__all__ = ["cases"]


def cases() -> Iterator[Case]:
    """Left and right padding; even and odd widths; one position, many, and far ones; more positions than rows."""
    odd, even = config(), config(model_width=12)
    yield make("token_positions", "no_padding", odd, mask_bt=np.ones((B, T), bool))
    yield make("token_positions", "right_padding", odd, mask_bt=ragged(B, S))
    yield make("token_positions", "left_padding", odd, "PE11", mask_bt=left_padding(4, S))
    yield make("token_positions", "gap", odd, "PE11", mask_bt=np.array([[False, True, False, True, False]]))
    steps = np.tile(np.arange(S), (B, 1))
    yield make("positional_encoding", "even_width", even, "PE1 PE2 PE3 PE4 PE5 PE7 PE10", position_bt=steps)
    yield make("positional_encoding", "odd_width", odd, "PE1 PE2 PE3 PE4 PE5 PE7 PE8 PE10", position_bt=steps)
    yield make("positional_encoding", "one_position", even, "PE10", position_bt=np.zeros((B, 1), int))
    yield make("positional_encoding", "width_1", config(model_width=1), position_bt=steps)
    yield make("positional_encoding", "long", even, "PE1 PE2 PE7", position_bt=np.arange(200)[None])
    yield make("positional_encoding", "far", even, position_bt=np.array([[9_999, 10_000, 65_537, 1_000_000]]))
    yield make("positional_encoding", "scattered", odd, "PE5", position_bt=np.array([[0, 0, 1, 2], [3, 1, 4, 1]]))
