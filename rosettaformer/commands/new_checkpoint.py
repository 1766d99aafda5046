"""`rosettaformer new-checkpoint`."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from ..common.extras import require
from ..files.checkpoints import load, unsupported
from ..files.checkpoints.hugging_face import new
from ..files.checkpoints.strict import DTYPES
from . import completion, words
from .options import Choice, Grouped, examples, families, one_of, seed_of

EXAMPLES = examples("new-checkpoint llama --out llama", "new-checkpoint gemma2 --out gemma --tokenizer --set sliding_window=8")


SIZE = "Size of the model: ties, dyadic and bias are tiny, and rounding or a wrong dtype changes what their routers choose."


@click.command("new-checkpoint", cls=Grouped, epilog=f"{families(new.names())}.\n\n{EXAMPLES}")
@click.argument("family", metavar="FAMILY", shell_complete=completion.words(completion.families))
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="New folder.")
@seed_of("Seed for the weights, equal in every dtype.")
@click.option("--size", type=Choice(new.SIZES), default=new.SIZES[0], show_default=True, help=SIZE)
@one_of("--dtype", "DTYPE", DTYPES, "float32", f"Dtype: {', '.join(DTYPES)}.")
@click.option("--tokenizer", is_flag=True, help="Write a small tokenizer, too, for generate, attention and report --text.")
@click.option("--set", "settings", multiple=True, metavar="ENTRY=VALUE", help="Entry of config.json, such as hidden_size=64; repeatable.")
def new_checkpoint(family: str, out: Path, settings: tuple[str, ...], tokenizer: bool, **options: Any) -> None:
    """Write a small random Hugging Face checkpoint.

    Writes config.json, safetensors and generation_config.json, which transformers can load. FAMILY
    is a model_type, or the name of a model such as llama2. Nested entries of --set have dots:
    rope_parameters.factor=4.

    The weights make every bug visible: norm scales are far from 1, biases far from 0, attention
    scores and logits exceed their caps, all sizes differ, and windows and original lengths are
    shorter than a prompt of 100 tokens.
    """
    unsupported.refuse(family)
    Choice(new.names()).convert(family, None, None)
    new.write(family, out, settings=_parsed(settings), tokenizer=_tokenizer() if tokenizer else None, **options)
    checkpoint = load(out, "hugging-face")
    size = sum(array.size for array in checkpoint.parameters.values())
    click.echo(words.checkpoint(out, checkpoint.foreign["config.json"]["architectures"][0], size, options["dtype"]))


def _tokenizer() -> Callable[[Path, Mapping[str, Any]], None]:
    """Returns a function that writes a tokenizer. Raises MissingBackend without `tokenizers`."""
    require("--tokenizer", {"inference": ("tokenizers",)})
    from ..use.inference import new_tokenizer

    return new_tokenizer.write


def _parsed(settings: tuple[str, ...]) -> dict[str, Any]:
    """Returns the entries by name. Raises ValueError on a missing value or a repeated entry."""
    found: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(f"--set must be ENTRY=VALUE; got {text!r}")
        if name in found:
            raise ValueError(f"--set {name} is given twice")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
