"""`rosettaformer vectors`."""

import sys
from pathlib import Path

import click

from reference_numpy.suggestions import known

from ..judge.expectation.components import COMPONENTS
from ..judge.suite import all_cases, of_components
from ..judge.vectors import golden
from . import words
from .options import Group, Grouped, examples
from .progress import Working

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group(cls=Group, epilog=examples("vectors export vectors", "vectors verify vectors"))
def vectors() -> None:
    """Export or verify golden test vectors.

    Golden vectors are the inputs and expected outputs of every case, as safetensors files with a
    JSON manifest; reading them takes no framework and no Python. `rosettaformer check --results
    DIR` tests the outputs of another program on them.
    """


@vectors.command(cls=Grouped, epilog=examples("vectors export vectors", "vectors export vectors --component softmax --grad"))
@click.argument("directory", type=FOLDER)
@click.option("--component", "components", multiple=True, metavar="NAME", help="Component to export; repeatable. [default: all]")
@click.option("--core", is_flag=True, help="Export the core cases only.")
@click.option("--grad", is_flag=True, help="Export gradients, too.")
def export(directory: Path, components: tuple[str, ...], core: bool, grad: bool) -> None:
    """Export golden vectors to DIRECTORY, replacing any vectors in it."""
    known("component", components, COMPONENTS)
    with Working(words.WRITING_VECTORS, usual=words.USUAL_VECTORS, unit="cases") as working:
        cases = [case for case in of_components(all_cases(grad=True), components, grad) if case.core or not core]
        if not cases:
            raise ValueError(f"{', '.join(components)} has no core cases; remove --core")
        working.expect(len(cases))
        golden.export(directory, cases, working.advance)
    size = sum(path.stat().st_size for path in directory.iterdir())
    click.echo(words.vectors(len(cases), size, directory))


@vectors.command(cls=Grouped, epilog=examples("vectors verify vectors", "vectors verify vectors --rounding"))
@click.argument("directory", type=FOLDER)
@click.option("--rounding", is_flag=True, help="Accept rounding differences, such as those of another CPU or library.")
def verify(directory: Path, rounding: bool) -> None:
    """Verify that the vectors in DIRECTORY are complete and equal to new ones, bit for bit.

    Exits with 0 if they are, otherwise with 1.
    """
    with Working(words.VERIFYING_VECTORS, usual=words.USUAL_VECTORS, unit="cases at most") as working:
        working.expect(len(all_cases(grad=True)))
        findings = golden.verify(directory, working.advance)
    wrong = [finding for finding in findings if not (rounding and finding.rounding)]
    click.echo(words.verified(len(wrong), len(findings) - len(wrong)))
    for finding in wrong:
        click.echo(words.finding(finding.message, finding.rounding))
    sys.exit(1 if wrong else 0)
