"""`rosettaformer classify`."""

import json
from pathlib import Path
from typing import Any, BinaryIO

import click

from ..common.outputs import versioned
from ..common.reading import read_texts
from .lines import Lines, Row
from .options import BATCH_SIZE, Grouped, folder_argument, model_options, open_both, section


@click.command(cls=Grouped)
@folder_argument
@click.argument("file", type=click.File("rb"), default="-", metavar="[FILE]")
@section(
    "Lines",
    click.option("--batch-size", type=BATCH_SIZE, default=32, show_default=True, help="Lines that are read together."),
    click.option("--json", "as_json", is_flag=True, help="Print an object a line: line, text, pair, label, probabilities."),
)
@model_options
def classify(folder: Path, file: BinaryIO, batch_size: int, as_json: bool, **options: Any) -> None:
    """Classify lines, from FILE or standard input, with the model in DIR: a BERT with a classification head, as Hugging Face folders hold.

    One line out for every line in: the likeliest class, then the probability of each (of a regression its numbers). A tab in a line
    separates a pair of texts. Texts that are longer than the model's positions are cut. A line that cannot be read has an error in
    place of a class, and the exit code is 2.
    """
    found, model = open_both(folder, "classify", **options)
    from ..use.inference.classification import classify as run

    rows = Lines()
    for lines in read_texts(file, batch_size):
        for row in rows.answered(lines, lambda texts: run(model, found.tokenizer, found.labels, texts), _text):
            click.echo(_json(row, found.labels.names) if as_json else _words(row, found.labels.names))
    rows.end()


def _text(line: str) -> str | tuple[str, str]:
    """Returns the text of a line, or its pair of texts."""
    parts = line.split("\t")
    if len(parts) > 2:
        raise ValueError(f"a line must be one text, or two that a tab separates; got {len(parts)}")
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
