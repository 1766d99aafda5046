"""`rosettaformer attention`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..common.atomic import require as writable
from ..common.atomic import write_text
from ..common.extras import require
from . import words
from .options import OUT, Grouped, examples, folder_argument, model_options, one_or_two, open_both, section, text_option


class Numbers(click.ParamType):
    """Numbers and inclusive ranges, such as 0,4-7."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if not isinstance(value, str):
            return tuple(value)
        numbers: list[int] = []
        for part in value.split(","):
            if not (found := re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)):
                self.fail(f"must be numbers or ranges, such as 0,4-7; got {value!r}", param, ctx)
            numbers += range(int(found[1]), int(found[2] or found[1]) + 1)
        return tuple(sorted(set(numbers)))


@click.command(
    cls=Grouped,
    epilog=examples(
        "attention bert/ --text 'the cat sat' --out page.html", "attention llama/ --text 'the cat' --heads 0-3 --out page.html"
    ),
)
@folder_argument
@section(
    "Page",
    text_option,
    click.option("--layers", type=Numbers(), default=(), metavar="NUMBERS", help="Layers to show, such as 0,4-7. [default: all]"),
    click.option("--heads", type=Numbers(), default=(), metavar="NUMBERS", help="Heads to show, such as 0-3. [default: all]"),
    click.option("--out", type=OUT, required=True, metavar="FILE", help="Output file: one HTML page."),
)
@model_options
def attention(folder: Path, texts: tuple[str, ...], layers: Sequence[int], heads: Sequence[int], out: Path, **options: Any) -> None:
    """Write an HTML page of a model's attention weights.

    DIR is a Hugging Face checkpoint of a BERT model or of a decoder such as GPT-2 or Llama. The
    page shows every head, single tokens, all heads of a layer combined and, for a pair of texts,
    the attention within and between them. The weights equal those of transformers with
    output_attentions=True.
    """
    text, pair = one_or_two(texts)
    if text is None:
        raise click.UsageError("--text is required: the text that the model reads")
    writable(out)
    require("the page", {"report": ("jinja2",)})
    found, model = open_both(folder, "attend", **options)
    from ..use.inference.attention import attend
    from ..use.inference.attention_page import chosen, render

    shown = chosen(attend(model, found.tokenizer, text, pair), layers, heads)
    facts = {"backend": f"{options['backend']}, {options['dtype']}", "tokens": _lengths(shown, model.config.max_positions)}
    page = render("/".join(folder.resolve().parts[-2:]), list(texts), facts, shown)
    write_text(out, page)
    click.echo(words.page(out, sum(one.weights_lhts.shape[0] * one.weights_lhts.shape[1] for one in shown), len(page)))


def _lengths(shown: Any, positions: int) -> str:
    lengths = list(dict.fromkeys(len(one.keys) for one in shown))
    return words.lengths(lengths, positions in lengths)
