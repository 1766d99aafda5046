"""`rosettaformer fill-mask`."""

import json
from pathlib import Path
from typing import Any, BinaryIO

import click

from ..common.outputs import versioned
from .lines import Lines, Row, batches
from .options import BATCH_SIZE, Grouped, folder_argument, model_options, open_both, section

_COUNT = click.IntRange(min=1)


@click.command(cls=Grouped)
@folder_argument
@click.argument("file", type=click.File("rb"), required=False, metavar="[FILE]")
@section(
    "Texts",
    click.option("--text", "texts", multiple=True, metavar="TEXT", help="A text with a mask, such as [MASK]; repeat it for several."),
    click.option("--top-k", type=_COUNT, default=5, show_default=True, help="The likeliest tokens of each mask that are shown."),
    click.option("--batch-size", type=BATCH_SIZE, default=8, show_default=True, help="Texts that are read together."),
    click.option("--json", "as_json", is_flag=True, help="Print an object a text: line, text, and for each mask its tokens."),
)
@model_options
def fill_mask(
    folder: Path, file: BinaryIO | None, texts: tuple[str, ...], top_k: int, batch_size: int, as_json: bool, **options: Any
) -> None:
    """Fill the masks in texts with the model in DIR: a BERT with a masked language head, as Hugging Face folders hold.

    Texts are --text, or the lines of FILE or standard input. For every mask the likeliest tokens: probability, id, token, and the text with
    it, as the pipeline fill-mask of transformers gives them. Texts that are longer than the model's positions are cut. A text without a
    mask has an error in place of tokens, and the exit code is 2.
    """
    several = batches("text", texts, file, batch_size)
    found, model = open_both(folder, "fill", **options)
    from ..use.inference.masks import fill

    rows = Lines("text")
    for lines in several:
        for row in rows.answered(lines, lambda given: fill(model, found.tokenizer, given, top_k)):
            click.echo(_json(row) if as_json else _words(row))
    rows.end()


def _words(row: Row) -> str:
    """Yields a line for each token, and an empty line between masks."""
    if row.problem:
        return f"[{row.number}] error: {row.problem}"
    masks = ["\n".join(f"{one.score:.4f}  {one.token:6}  {one.token_str}\t{one.sequence}" for one in mask) for mask in row.answer]
    return f"[{row.number}] {row.item}\n" + "\n\n".join(masks)


def _json(row: Row) -> str:
    said = {"error": row.problem} if row.problem else {"masks": [[one._asdict() for one in mask] for mask in row.answer]}
    return json.dumps(versioned("fill-mask", {"line": row.number, "text": row.item}) | said, ensure_ascii=False)
