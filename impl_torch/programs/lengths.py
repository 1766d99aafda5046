"""Rotary scaling by the longest row of a whole batch, for a process with only some rows."""

import functools
from dataclasses import replace
from typing import Any

from torch import Tensor

from reference_numpy import TransformerConfig

from ..inputs import masked_positions
from ..rotary import rotary_frequencies
from ..transformer import Transformer
from ..values import Text

__all__ = ["at_length", "follow", "longest"]


@functools.lru_cache(maxsize=64)
def at_length(config: TransformerConfig, length: int) -> TransformerConfig:
    """Returns a config whose frequencies are those of this length, whatever rows are read."""
    changes: dict[str, Any] = {}
    for side in ("", "local_"):
        base = getattr(config, f"{side}rotary_base")
        scaling = getattr(config, f"{side}rotary_scaling")
        if scaling.kind == "dynamic":
            size = config.rotary_size
            _, frequency, *_ = rotary_frequencies(size, base, scaling, length).tolist()
            changes[f"{side}rotary_base"] = frequency ** (-size / 2)
            changes[f"{side}rotary_scaling"] = type(scaling)()
        elif scaling.kind == "longrope":
            long = length > scaling.original_length
            factors = scaling.long_factors if long else scaling.short_factors
            same = replace(scaling, short_factors=factors, long_factors=factors)
            changes[f"{side}rotary_scaling"] = same
    return config.replace(**changes)


def follow(model: Transformer, source: Text | None, target: Text | None) -> None:
    """Makes a model treat its rows as part of these, whose longest may set all frequencies."""
    for side, text in (("source", source), ("target", target)):
        if text is not None and model.config.rotary_by_length:
            _, position_bt = masked_positions(model.config, side, text.ids, text.mask)
            length = text.ids.shape[1] if position_bt is None else longest(position_bt)
            stack = model.encoder if side == "source" else model.decoder
            stack.config = at_length(model.config, length)


def longest(position_bt: Tensor) -> int:
    """Returns the length of the longest row, from the positions of all rows."""
    return int(position_bt.max()) + 1 if position_bt.numel() else 1
