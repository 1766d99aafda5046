"""Places in a run of the reference: the last layer, for any number of layers, and the residuals."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from ...case import Case
from ...reference.trace import TracedCall

__all__ = ["last_layer", "residuals"]


def last_layer(case: Case, words: str) -> str:
    """The words with `layers.last` for the index of the last layer, whatever their number is."""
    if not (stack := re.search(r"(encoder|decoder)?\.?layers\.(\d+)", words)):
        return words
    name = stack[1] or case.component
    count = getattr(case.config, f"{name}_layers", 0)
    return words.replace(f"layers.{stack[2]}", "layers.last") if int(stack[2]) == count - 1 else words


def residuals(calls: Mapping[str, TracedCall], case: Case) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The path of every sub-layer, its residual, and its output after dropout."""
    for path, call in calls.items():
        if path.endswith(("self_attention", "cross_attention", "feed_forward")) and f"{path}_norm" in calls:
            post = case.config.norm_placement == "post"
            residual = next(iter(call.inputs.values())) if post else calls[f"{path}_norm"].inputs["x_btd"]
            yield path, residual, calls[f"{path}_dropout"].output
