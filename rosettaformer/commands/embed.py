"""`rosettaformer embed`."""

import dataclasses
import json
from pathlib import Path
from typing import Any, BinaryIO

import click
import numpy as np

from ..common.outputs import versioned
from ..common.reading import read_texts
from .lines import Lines
from .options import BATCH_SIZE, Choice, Grouped, examples, folder_argument, model_options, open_both, section


@click.command(cls=Grouped, epilog=examples("embed bert/ sentences.txt", "embed bert/ sentences.txt --similarity"))
@folder_argument
@click.argument("file", type=click.File("rb"), default="-", metavar="[FILE]")
@section(
    "Lines",
    click.option("--similarity", is_flag=True, help="Print the cosine similarity of all pairs instead of the vectors."),
    click.option("--pooling", type=Choice(["mean", "first"]), help="Pooling of the tokens. [default: the checkpoint's, or mean]"),
    click.option("--batch-size", type=BATCH_SIZE, default=32, show_default=True, metavar="N", help="Lines per batch."),
)
@model_options
def embed(folder: Path, file: BinaryIO, similarity: bool, pooling: str | None, batch_size: int, **options: Any) -> None:
    """Embed lines of text with a BERT model.

    DIR is a Hugging Face checkpoint. FILE, or standard input, has one text per line. Prints one
    JSON object per line: line, text, vector. Pooling and normalization follow the checkpoint's
    sentence-transformers files; without them, vectors are means of unit length.

    Texts longer than the model's positions are truncated. If a line cannot be read, its output is
    an error and the exit code is 2.
    """
    found, model = open_both(folder, "encode", **options)
    from ..use.inference import sentences

    how = sentences.recipe(folder)
    how = dataclasses.replace(how, pooling=pooling) if pooling else how
    rows, vectors = Lines(), []
    for lines in read_texts(file, batch_size):
        for row in rows.answered(lines, lambda texts: sentences.embed(model, found.tokenizer, how, texts)):
            if similarity:
                vector = np.full(model.config.model_width, np.nan) if row.problem else row.answer
                vectors.append(vector / max(float(np.linalg.norm(vector)), 1e-12))
            else:
                said = {"error": row.problem} if row.problem else {"vector": row.answer.tolist()}
                click.echo(json.dumps(versioned("embed", {"line": row.number, "text": row.item}) | said, ensure_ascii=False))
    for vector in vectors:
        click.echo("  ".join(f"{vector @ other:6.3f}" for other in vectors))
    rows.end()
