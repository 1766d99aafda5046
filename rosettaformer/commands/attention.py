"""`rosettaformer attention`."""

from pathlib import Path
from typing import Any

import click

from ..atomic import replacing
from ..atomic import require as writable
from ..extras import install
from .models import folder_argument, model_options, open_both
from .options import Grouped, Missing, section
from .ports import importable

__all__ = ["attention"]


@click.command(cls=Grouped)
@folder_argument
@section(
    "Page",
    click.option("--text", required=True, metavar="TEXT", help="What the model reads."),
    click.option("--pair", metavar="TEXT", help="A second text: of an encoder alone a second segment, beside an encoder what is decoded."),
    click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE", help="The page: one HTML file."),
)
@model_options
def attention(folder: Path, text: str, pair: str | None, out: Path, **options: Any) -> None:
    """Show what every head of every layer of the model in DIR attends to, as a page to open in a browser.

    DIR is a BERT or a GPT-2, as Hugging Face folders hold. Every head is a picture, which enlarges; a token shows its weights alone. The
    weights are those that transformers gives with output_attentions=True.
    """
    writable(out)
    if not importable("jinja2"):
        raise Missing(f"the page needs Jinja2: {install('report')}")
    found, model = open_both(folder, "attend", **options)
    from ..inference.attention import attend
    from ..inference.attention_page import render

    shown = attend(model, found.tokenizer, text, pair)
    facts = {"backend": f"{options['backend']}, {options['dtype']}", "tokens": _lengths(shown, model.config.max_positions)}
    page = render(folder.resolve().name, [text, *([] if pair is None else [pair])], facts, shown)
    with replacing(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    click.echo(f"{out}: {sum(one.weights_lhts.shape[0] * one.weights_lhts.shape[1] for one in shown)} heads, {len(page) / 1e6:.1f} MB")


def _lengths(shown: Any, positions: int) -> str:
    lengths = list(dict.fromkeys(len(one.keys) for one in shown))
    full = ", all that the model has positions for" if positions in lengths else ""
    return " and ".join(map(str, lengths)) + full
