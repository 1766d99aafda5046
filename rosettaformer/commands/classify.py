"""`rosettaformer classify`."""

import json
from pathlib import Path
from typing import Any, BinaryIO

import click
import numpy as np

from ..reading import read_texts
from .models import folder_argument, model_options, open_both
from .options import Grouped, section

__all__ = ["classify"]


@click.command(cls=Grouped)
@folder_argument
@click.argument("file", type=click.File("rb"), default="-", metavar="[FILE]")
@section(
    "Lines",
    click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True, help="Lines that are read together."),
    click.option("--json", "as_json", is_flag=True, help="Print an object a line: line, text, pair, label, probabilities."),
)
@model_options
def classify(folder: Path, file: BinaryIO, batch_size: int, as_json: bool, **options: Any) -> None:
    """Classify lines, from FILE or standard input, with the model in DIR: a BERT with a classification head, as Hugging Face folders hold.

    One line out for every line in: the likeliest class, then the probability of each (of a regression its numbers). A tab in a line
    separates a pair of texts. Texts that are longer than the model's positions are cut.
    """
    found, model = open_both(folder, "classify", **options)
    from ..inference.classification import classify as run

    number = 0
    for lines in read_texts(file, batch_size):
        texts = [_text(line, number + index) for index, line in enumerate(lines, start=1)]
        for text, row in zip(texts, run(model, found.tokenizer, found.labels, texts), strict=True):
            number += 1
            click.echo(_json(number, text, row, found.labels.names) if as_json else _words(row, found.labels.names))


def _text(line: str, number: int) -> str | tuple[str, str]:
    """The text of a line, or its pair."""
    parts = line.split("\t")
    if len(parts) > 2:
        raise ValueError(f"a line must be one text, or two that a tab separates; got {len(parts)} in line {number}")
    return (parts[0], parts[1]) if len(parts) == 2 else line


def _words(row: np.ndarray, names: tuple[str, ...]) -> str:
    each = "  ".join(f"{name} {value:.4f}" for name, value in zip(names, row, strict=True))
    return f"{names[int(row.argmax())]}\t{each}"


def _json(number: int, text: str | tuple[str, str], row: np.ndarray, names: tuple[str, ...]) -> str:
    first, second = text if isinstance(text, tuple) else (text, None)
    found = {"line": number, "text": first} | ({} if second is None else {"pair": second})
    values = {name: float(value) for name, value in zip(names, row, strict=True)}
    return json.dumps(found | {"label": names[int(row.argmax())], "probabilities": values}, ensure_ascii=False)
