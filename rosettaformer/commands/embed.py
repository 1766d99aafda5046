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
from .options import BATCH_SIZE, Choice, Grouped, folder_argument, model_options, open_both, section


@click.command(cls=Grouped)
@folder_argument
@click.argument("file", type=click.File("rb"), default="-", metavar="[FILE]")
@section(
    "Lines",
    click.option("--similarity", is_flag=True, help="Print the cosine of every two lines in place of their vectors."),
    click.option("--pooling", type=Choice(["mean", "first"]), help="Of a text's tokens. [default: as the folder says, otherwise mean]"),
    click.option("--batch-size", type=BATCH_SIZE, default=32, show_default=True, help="Lines that are read together."),
)
@model_options
def embed(folder: Path, file: BinaryIO, similarity: bool, pooling: str | None, batch_size: int, **options: Any) -> None:
    """One vector for every line, from FILE or standard input, by the model in DIR: a BERT, as Hugging Face folders hold.

    Prints an object of JSON a line: line, text, vector. The files of sentence-transformers in the folder say how tokens become a vector;
    without them it is their mean, of length 1. Texts that are longer than the model's positions are cut. A line that cannot be read has
    an error in place of a vector, and the exit code is 2.
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
