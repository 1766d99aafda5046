"""`rosettaformer fill-mask`."""

import json
from pathlib import Path
from typing import Any, BinaryIO

import click

from ..common.outputs import versioned
from .lines import Lines, Row, batches
from .options import BATCH_SIZE, Grouped, examples, folder_argument, model_options, open_both, section

_COUNT = click.IntRange(min=1)


@click.command(
    cls=Grouped, epilog=examples("fill-mask bert/ --text 'Paris is the [MASK] of France.'", "fill-mask bert/ texts.txt --top-k 3 --json")
)
@folder_argument
@click.argument("file", type=click.File("rb"), required=False, metavar="[FILE]")
@section(
    "Texts",
    click.option("--text", "texts", multiple=True, metavar="TEXT", help="Text with a mask token, such as [MASK]; repeatable."),
    click.option("--top-k", type=_COUNT, default=5, show_default=True, metavar="N", help="Number of tokens per mask."),
    click.option("--batch-size", type=BATCH_SIZE, default=8, show_default=True, metavar="N", help="Texts per batch."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object per text: line, text, and the tokens of each mask."),
)
@model_options
def fill_mask(
    folder: Path, file: BinaryIO | None, texts: tuple[str, ...], top_k: int, batch_size: int, as_json: bool, **options: Any
) -> None:
    """Predict masked tokens with a BERT model.

    DIR is a Hugging Face checkpoint with a masked language head. The texts are those of --text, or
    the lines of FILE or standard input. Prints the most likely tokens of each mask: probability,
    id, token and the filled text, as in the fill-mask pipeline of transformers.

    Texts longer than the model's positions are truncated. If a text has no mask, its output is an
    error and the exit code is 2.
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
    """Returns one line per token, with an empty line between masks."""
    if row.problem:
        return f"[{row.number}] error: {row.problem}"
    masks = ["\n".join(f"{one.score:.4f}  {one.token:6}  {one.token_str}\t{one.sequence}" for one in mask) for mask in row.answer]
    return f"[{row.number}] {row.item}\n" + "\n\n".join(masks)


def _json(row: Row) -> str:
    said = {"error": row.problem} if row.problem else {"masks": [[one._asdict() for one in mask] for mask in row.answer]}
    return json.dumps(versioned("fill-mask", {"line": row.number, "text": row.item}) | said, ensure_ascii=False)
