"""`rosettaformer classify`."""

import json
from pathlib import Path
from typing import Any, BinaryIO

import click

from ..common.outputs import versioned
from ..common.reading import read_texts
from .lines import Lines, Row
from .options import BATCH_SIZE, Grouped, examples, folder_argument, model_options, open_both, section


@click.command(cls=Grouped, epilog=examples("classify bert/ reviews.txt", "classify bert/ pairs.tsv --backend jax --json"))
@folder_argument
@click.argument("file", type=click.File("rb"), default="-", metavar="[FILE]")
@section(
    "Lines",
    click.option("--batch-size", type=BATCH_SIZE, default=32, show_default=True, metavar="N", help="Lines per batch."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line: line, text, pair, label, probabilities."),
)
@model_options
def classify(folder: Path, file: BinaryIO, batch_size: int, as_json: bool, **options: Any) -> None:
    """Classify lines of text with a BERT model.

    DIR is a Hugging Face checkpoint with a classification head. FILE, or standard input, has one
    text per line, or a pair of texts separated by a tab. Prints the most likely class and the
    probability of each class, or the values of a regression.

    Texts longer than the model's positions are truncated. If a line cannot be read, its output is
    an error and the exit code is 2.
    """
    found, model = open_both(folder, "classify", **options)
    from ..use.inference.classification import classify as run

    rows = Lines()
    for lines in read_texts(file, batch_size):
        for row in rows.answered(lines, lambda texts: run(model, found.tokenizer, found.labels, texts), _text):
            click.echo(_json(row, found.labels.names) if as_json else _words(row, found.labels.names))
    rows.end()


def _text(line: str) -> str | tuple[str, str]:
    """Returns the text, or the pair of texts, of a line."""
    parts = line.split("\t")
    if len(parts) > 2:
        raise ValueError(f"a line must be one text, or two separated by a tab; got {len(parts)}")
    return (parts[0], parts[1]) if len(parts) == 2 else line


def _words(row: Row, names: tuple[str, ...]) -> str:
    if row.problem:
        return f"error\t{row.problem}"
    each = "  ".join(f"{name} {value:.4f}" for name, value in zip(names, row.answer, strict=True))
    return f"{names[int(row.answer.argmax())]}\t{each}"


def _json(row: Row, names: tuple[str, ...]) -> str:
    first, second = row.item if isinstance(row.item, tuple) else (row.item, None)
    said = versioned("classify", {"line": row.number, "text": first}) | ({} if second is None else {"pair": second})
    if row.problem:
        return json.dumps(said | {"error": row.problem}, ensure_ascii=False)
    values = {name: float(value) for name, value in zip(names, row.answer, strict=True)}
    return json.dumps(said | {"label": names[int(row.answer.argmax())], "probabilities": values}, ensure_ascii=False)
