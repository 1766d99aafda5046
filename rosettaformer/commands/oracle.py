"""`rosettaformer oracle`."""

import sys
from importlib.metadata import version

import click
from rich.console import Console

from ..common.extras import require
from ..files.checkpoints.hugging_face import new
from ..judge.status import FAILURES
from . import completion, words
from .options import Choice, Grouped, examples


@click.command(cls=Grouped, epilog=examples("oracle", "oracle llama gemma2 bart"))
@click.argument("families", metavar="[FAMILY]...", nargs=-1, shell_complete=completion.words(completion.families))
def oracle(families: tuple[str, ...]) -> None:
    """Check the installed transformers against the reference.

    Runs the class of each FAMILY, by default of all, with random weights on the prompts of `check
    --like`, and names what a class computes differently. transformers changes between versions: a
    port that conforms may differ from the library that is installed.

    Exits with 1 if a class differs. Classes that this version does not have are listed.
    """
    for family in families:
        Choice(new.names()).convert(family, None, None)
    require("oracle", {"torch": ("torch",), "inference": ("transformers",)})
    from ..judge.oracle import judged  # imports every family

    click.echo(words.library("transformers", version("transformers")))
    differs = False
    for family in families or new.names():
        with Console(stderr=True).status(words.comparing_class(family)):
            found = judged(family)
        differs |= found.status in FAILURES
        click.echo(words.judged_class(found.family, found.name, found.status))
        for cause in found.causes:
            click.echo(f"  {cause}".replace("\n", "\n  "))
    sys.exit(int(differs))
