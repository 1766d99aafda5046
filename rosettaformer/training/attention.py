"""What a translation looked at: the cross-attention weights of the last layer, as the truth computes them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reference_numpy import attention, parameters

from ..checkpoints import Checkpoint
from ..checkpoints.replacing import replacing
from ..conformance.case import Case
from ..conformance.reference import trace

__all__ = ["draw", "table", "weights"]

SHADES = " .:-=+*#%@"


def weights(model: Checkpoint, source: Sequence[int], target: Sequence[int]) -> np.ndarray:
    """The weights `t s`, mean over heads, with which target position t attends to the source; each row adds up to 1.

    target: ids from START on; row t belongs to the token after target t.
    """
    inputs = {"source": np.array([source]), "target": np.array([target])}
    path = f"decoder.layers.{model.config.decoder_layers - 1}.cross_attention"
    tap = trace.record(Case("translation", "transformer", model.config, inputs, model.parameters).at("float64"))[path]
    _, weights_bhts = attention.multi_head_attention(parameters.nest(tap.parameters), **tap.inputs, return_weights=True)
    return weights_bhts[0].mean(axis=0)


def table(weights_ts: np.ndarray, source: Sequence[str], target: Sequence[str]) -> str:
    """The weights as text: a line a target word, a column a source word, the darker the larger."""
    width = max(map(len, target))
    head = [f"{'':{width}}  {index:>2} {word}" for index, word in enumerate(source)]
    numbers = f"{'':{width}}  " + " ".join(f"{index:>2}" for index in range(len(source)))
    lines = [
        f"{word:>{width}}  " + " ".join(2 * SHADES[min(int(weight * len(SHADES)), len(SHADES) - 1)] for weight in row)
        for word, row in zip(target, weights_ts, strict=True)
    ]
    return "\n".join([*head, numbers, *lines])


def draw(path: Path, weights_ts: np.ndarray, source: Sequence[str], target: Sequence[str]) -> None:
    """The weights as a picture, in the format of the path's suffix."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2 + 0.35 * len(source), 1.5 + 0.3 * len(target)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(weights_ts, vmin=0, vmax=1, cmap="Greys", aspect="auto")
    axes.set_xticks(range(len(source)), [_plain(word) for word in source], rotation=60, ha="right")
    axes.set_yticks(range(len(target)), [_plain(word) for word in target])
    axes.set(xlabel="source", ylabel="answer")
    figure.colorbar(image, label="attention weight")
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=150)


def _plain(word: str) -> str:
    """The word without what matplotlib takes for mathematics."""
    return word.replace("$", r"\$")
