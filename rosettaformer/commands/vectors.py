"""`rosettaformer vectors`."""

import sys
from pathlib import Path

import click

from reference_numpy.suggestions import known

from ..judge.expectation.components import COMPONENTS
from ..judge.suite import all_cases, of_components
from ..judge.vectors import golden
from .options import Group
from .progress import Working

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group(cls=Group)
def vectors() -> None:
    """Golden vectors: every case with what the reference gives for it, in safetensors files and one JSON manifest.

    They are read without a framework and without Python. Outputs that another program makes from them are judged by
    `rosettaformer check --results DIR`.
    """


@vectors.command()
@click.argument("directory", type=FOLDER)
@click.option("--component", "components", multiple=True, help="Only the cases of this component. Repeat it for several.")
@click.option("--core", is_flag=True, help="Only the cases of a quick check.")
@click.option("--grad", is_flag=True, help="The gradients, too.")
def export(directory: Path, components: tuple[str, ...], core: bool, grad: bool) -> None:
    """Write the vectors into DIRECTORY; vectors that it holds are replaced."""
    known("component", components, COMPONENTS)
    with Working("writing vectors", usual="about five minutes for all of them", unit="cases") as working:
        cases = [case for case in of_components(all_cases(grad=True), components, grad) if case.core or not core]
        if not cases:
            raise ValueError(f"no case of {', '.join(components)} is in a quick check: leave out --core")
        working.expect(len(cases))
        golden.export(directory, cases, working.advance)
    size = sum(path.stat().st_size for path in directory.iterdir())
    click.echo(f"{len(cases)} cases, {size / 1e6:.1f} MB in {directory}")


@vectors.command()
@click.argument("directory", type=FOLDER)
@click.option("--rounding", is_flag=True, help="Allow differences of the last bits, such as another processor or library makes.")
def verify(directory: Path, rounding: bool) -> None:
    """Say whether the vectors in DIRECTORY are whole, and what the suite makes of them now, bit for bit.

    Exit 0 where they are as they must be, otherwise 1.
    """
    with Working("making the vectors again", usual="about five minutes for all of them", unit="cases at most") as working:
        working.expect(len(all_cases(grad=True)))
        findings = golden.verify(directory, working.advance)
    wrong = [finding for finding in findings if not (rounding and finding.rounding)]
    for finding in wrong:
        click.echo(finding.message + ("; --rounding allows it" if finding.rounding else ""))
    allowed = len(findings) - len(wrong)
    click.echo(f"{len(wrong)} differences" + (f", {allowed} of the last bits allowed" if allowed else "") if findings else "identical")
    sys.exit(1 if wrong else 0)
