"""`rosettaformer attention`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..common.atomic import require as writable
from ..common.atomic import write_text
from ..common.extras import require
from .options import OUT, Grouped, folder_argument, model_options, one_or_two, open_both, section, text_option


class Numbers(click.ParamType):
    """Numbers and ranges including both ends, such as 0,4-7."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if not isinstance(value, str):
            return tuple(value)
        numbers: list[int] = []
        for part in value.split(","):
            if not (found := re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)):
                self.fail(f"must be numbers and ranges, such as 0,4-7; got {value!r}", param, ctx)
            numbers += range(int(found[1]), int(found[2] or found[1]) + 1)
        return tuple(sorted(set(numbers)))


@click.command(cls=Grouped)
@folder_argument
@section(
    "Page",
    text_option,
    click.option("--layers", type=Numbers(), default=(), metavar="NUMBERS", help="The layers on the page, such as 0,4-7; all by default."),
    click.option("--heads", type=Numbers(), default=(), metavar="NUMBERS", help="The heads of each layer on the page, such as 0-3."),
    click.option("--out", type=OUT, required=True, metavar="FILE", help="The page: one HTML file."),
)
@model_options
def attention(folder: Path, texts: tuple[str, ...], layers: Sequence[int], heads: Sequence[int], out: Path, **options: Any) -> None:
    """Show what every head of every layer of the model in DIR attends to, as a page to open in a browser.

    DIR is a Hugging Face folder of a BERT, or of a decoder such as GPT-2 or Llama. Every head is a picture, which enlarges; a token shows
    only its own weights. The heads of a layer can be seen over each other, and of a pair each text's attention to itself and to the other.
    The weights are those that transformers gives with output_attentions=True.
    """
    text, pair = one_or_two(texts)
    if text is None:
        raise click.UsageError("--text says what the model reads; got none")
    writable(out)
    require("the page", {"report": ("jinja2",)})
    found, model = open_both(folder, "attend", **options)
    from ..use.inference.attention import attend
    from ..use.inference.attention_page import chosen, render

    shown = chosen(attend(model, found.tokenizer, text, pair), layers, heads)
    facts = {"backend": f"{options['backend']}, {options['dtype']}", "tokens": _lengths(shown, model.config.max_positions)}
    page = render("/".join(folder.resolve().parts[-2:]), list(texts), facts, shown)
    write_text(out, page)
    click.echo(f"{out}: {sum(one.weights_lhts.shape[0] * one.weights_lhts.shape[1] for one in shown)} heads, {len(page) / 1e6:.1f} MB")


def _lengths(shown: Any, positions: int) -> str:
    lengths = list(dict.fromkeys(len(one.keys) for one in shown))
    full = ", all that the model has positions for" if positions in lengths else ""
    return " and ".join(map(str, lengths)) + full
