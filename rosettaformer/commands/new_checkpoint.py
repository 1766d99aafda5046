"""`rosettaformer new-checkpoint`: a small random model of a family, as a folder of Hugging Face."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from ..common.extras import require
from ..files.checkpoints import load, unsupported
from ..files.checkpoints.hugging_face import new
from ..files.checkpoints.strict import DTYPES
from . import completion
from .options import Choice, families


@click.command("new-checkpoint", epilog=f"{families(new.names())}.")
@click.argument("family", metavar="FAMILY", shell_complete=completion.words(completion.families))
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="The new folder.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the weights: the same in every dtype.")
@click.option("--size", type=Choice(new.SIZES), default=new.SIZES[0], show_default=True, help="Of the model.")
@click.option("--dtype", type=Choice(DTYPES), default="float32", show_default=True, help="Of the tensors.")
@click.option("--tokenizer", is_flag=True, help="Write a small tokenizer, too: report --text, generate and attention read texts with it.")
@click.option("--set", "settings", multiple=True, metavar="ENTRY=VALUE", help="An entry of config.json, as JSON or a word; repeatable.")
def new_checkpoint(family: str, out: Path, settings: tuple[str, ...], tokenizer: bool, **options: Any) -> None:
    """Write a small random model of FAMILY as Hugging Face writes it: config.json, safetensors, generation_config.json.

    FAMILY is a model_type, or the name of one of its models, such as llama2. Every weight is random and
    large enough to show: scales of norms are far from 1, biases far from 0, attention scores and logits
    beyond their caps. The sizes are small and all different; windows and original lengths are shorter
    than a prompt of 100 tokens. transformers loads the folder.
    Nested entries have dots: --set rope_parameters.factor=4.
    """
    unsupported.refuse(family)
    Choice(new.names()).convert(family, None, None)
    new.write(family, out, settings=_parsed(settings), tokenizer=_tokenizer() if tokenizer else None, **options)
    checkpoint = load(out, "hugging-face")
    size = sum(array.size for array in checkpoint.parameters.values())
    click.echo(f"wrote {out}: {checkpoint.foreign['config.json']['architectures'][0]}, {size:,} parameters, {options['dtype']}")


def _tokenizer() -> Callable[[Path, Mapping[str, Any]], None]:
    """Returns what writes a tokenizer. Raises MissingBackend without the package that makes it."""
    require("--tokenizer", {"inference": ("tokenizers",)})
    from ..use.inference import new_tokenizer

    return new_tokenizer.write


def _parsed(settings: tuple[str, ...]) -> dict[str, Any]:
    """Returns the entries by name. Raises ValueError on one that has no value, or is given twice."""
    found: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(f"--set must be ENTRY=VALUE; got {text!r}")
        if name in found:
            raise ValueError(f"--set gives {name} twice")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
