"""`rosettaformer embed`."""

import dataclasses
import json
from pathlib import Path
from typing import Any, BinaryIO

import click
import numpy as np

from ..reading import read_texts
from .models import folder_argument, model_options, open_both
from .options import Choice, Grouped, section

__all__ = ["embed"]


@click.command(cls=Grouped)
@folder_argument
@click.argument("file", type=click.File("rb"), default="-", metavar="[FILE]")
@section(
    "Lines",
    click.option("--similarity", is_flag=True, help="Print the cosine of every two lines in place of their vectors."),
    click.option("--pooling", type=Choice(["mean", "first"]), help="Of a text's tokens. [default: as the folder says, otherwise mean]"),
    click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True, help="Lines that are read together."),
)
@model_options
def embed(folder: Path, file: BinaryIO, similarity: bool, pooling: str | None, batch_size: int, **options: Any) -> None:
    """One vector for every line, from FILE or standard input, by the model in DIR: a BERT, as Hugging Face folders hold.

    Prints an object of JSON a line: line, text, vector. The files of sentence-transformers in the folder say how tokens become a vector;
    without them it is their mean, of length 1. Texts that are longer than the model's positions are cut.
    """
    found, model = open_both(folder, "encode", **options)
    from ..inference import sentences

    how = sentences.recipe(folder)
    how = dataclasses.replace(how, pooling=pooling) if pooling else how
    number, vectors = 0, []
    for texts in read_texts(file, batch_size):
        for text, vector in zip(texts, sentences.embed(model, found.tokenizer, how, texts), strict=True):
            number += 1
            if similarity:
                vectors.append(vector / max(float(np.linalg.norm(vector)), 1e-12))
            else:
                click.echo(json.dumps({"line": number, "text": text, "vector": vector.tolist()}, ensure_ascii=False))
    for row in vectors:
        click.echo("  ".join(f"{row @ other:6.3f}" for other in vectors))
