"""Translates texts with a run's model, and shows what a translation attended to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reference_numpy import attention, parameters

from .. import pictures
from ..checkpoints import Checkpoint, canonical
from ..conformance.case import Case
from ..conformance.reference import trace
from .answers import Decoding, Hypothesis, answer
from .backends import Searches
from .checkpoint_store import Store
from .manifest import Manifest
from .tokens import Tokens

SHADES = " .:-=+*#%@"


@dataclass(frozen=True)
class Translation:
    """The pieces of one text, as ids, and their answers; most texts are one piece, an empty text has none."""

    sources: list[list[int]]
    answers: list[Hypothesis]

    def text(self, tokens: Tokens) -> str:
        """The answers' text; a line feed that the model produced becomes a space."""
        return " ".join(tokens.text(answer.tokens) for answer in self.answers).replace("\n", " ")


def load_model(folder: Path, manifest: Manifest, name: str) -> Checkpoint:
    """Loads the model of the run's last checkpoint, of the average of its last ones, or of the best validation.

    Raises ValueError if the run has none yet, or if its config differs.
    """
    store = Store(folder)
    path = {"average": store.average, "best": store.best}.get(name) or next(reversed(store.models()), None)
    if path is None or not path.is_file():
        raise ValueError(f"the run in {folder} has no checkpoint {name!r} yet")
    checkpoint = canonical.load(path)
    if checkpoint.config != manifest.config:
        raise ValueError(f"{path} has another config than the run in {folder}")
    return checkpoint


def translate(trainer: Searches, tokens: Tokens, texts: Sequence[str], decoding: Decoding, longest: int) -> list[Translation]:
    """Returns the translations of the texts, in their order.

    A text of more than `longest` tokens, END included, is longer than all of the training data: it is translated in pieces, cut between
    words if possible, and the answers are joined.
    """
    pieces = [[*_pieces(tokens, text, longest)] if text.strip() else [] for text in texts]
    answers = iter(answer(trainer, [ids for parts in pieces for ids in parts], decoding))
    return [Translation(parts, [next(answers) for _ in parts]) for parts in pieces]


def _pieces(tokens: Tokens, text: str, longest: int) -> Iterator[list[int]]:
    """Returns the ids of the text, in pieces of at most `longest`."""
    (ids,) = tokens.source([text])
    if len(ids) <= longest:
        yield ids
        return
    end, room = ids[-1], max(longest - 1, 1)
    parts = [word[start : start + room] for word in _words(tokens, text) for start in range(0, len(word), room)]
    piece: list[int] = []
    for part in parts:  # words, and parts of a word that is too long
        if piece and len(piece) + len(part) > room:
            yield [*piece, end]
            piece = []
        piece = piece + part
    yield [*piece, end]


def _words(tokens: Tokens, text: str) -> list[list[int]]:
    """Returns the ids of every word without its END; all but the first begin with their space."""
    first, *rest = text.split()
    return [ids[:-1] for ids in tokens.source([first, *(f" {word}" for word in rest)])]


def attention_weights(model: Checkpoint, source: Sequence[int], target: Sequence[int]) -> np.ndarray:
    """Returns the weights `t s` of the last layer's cross-attention, averaged over heads, as the reference computes them; each row sums to
    1.

    target: ids from START on; row t belongs to the token after target t.
    """
    inputs = {"source": np.array([source]), "target": np.array([target])}
    path = f"decoder.layers.{model.config.decoder_layers - 1}.cross_attention"
    call = trace.record(Case("translation", "transformer", model.config, inputs, model.parameters).at("float64"))[path]
    _, weights_bhts = attention.multi_head_attention(parameters.nest(call.parameters), **call.inputs, return_weights=True)
    return weights_bhts[0].mean(axis=0)


def attention_table(weights_ts: np.ndarray, source: Sequence[str], target: Sequence[str]) -> str:
    """Renders the weights as text: one line per target word, one column per source word, darker for larger weights."""
    width = max(map(len, target))
    head = [f"{'':{width}}  {index:>2} {word}" for index, word in enumerate(source)]
    numbers = f"{'':{width}}  " + " ".join(f"{index:>2}" for index in range(len(source)))
    lines = [
        f"{word:>{width}}  " + " ".join(2 * SHADES[min(int(weight * len(SHADES)), len(SHADES) - 1)] for weight in row)
        for word, row in zip(target, weights_ts, strict=True)
    ]
    return "\n".join([*head, numbers, *lines])


def draw_attention(path: Path, weights_ts: np.ndarray, source: Sequence[str], target: Sequence[str]) -> None:
    """Draws the weights as a picture, in the format of the path's suffix."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2 + 0.35 * len(source), 1.5 + 0.3 * len(target)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(weights_ts, vmin=0, vmax=1, cmap="Greys", aspect="auto")
    axes.set_xticks(range(len(source)), [_plain(word) for word in source], rotation=60, ha="right")
    axes.set_yticks(range(len(target)), [_plain(word) for word in target])
    axes.set(xlabel="source", ylabel="answer")
    figure.colorbar(image, label="attention weight")
    pictures.save(figure, path)


def _plain(word: str) -> str:
    """Escapes what matplotlib would read as mathematics."""
    return word.replace("$", r"\$")
