"""`rosettaformer guide`."""

import time
from pathlib import Path

import click

from ..common.backends import PORTS, needs_of
from ..common.extras import require
from . import words
from .options import Grouped, examples
from .progress import Working

BUILT = Path(".evidence")
DTYPE = "float32"  # dtype of the measurements


@click.command(cls=Grouped, epilog=examples("guide --out site", "guide --out site --evidence .evidence"))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR", help="Output folder.")
@click.option(
    "--evidence",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Folder written by `make evidence`, to include. [default: .evidence, if it exists]",
)
def guide(out: Path, evidence: Path | None) -> None:
    """Build the porting guide, a static web site.

    DIR is a new folder, or one written by an earlier run. Open DIR/index.html in a browser; the
    site works offline. Its pages are generated from the source, with errors measured on this
    machine.
    """
    ours = [package for packages in needs_of(*PORTS).values() for package in packages]
    require("the guide", {"guide": ["jinja2", "pygments", "markdown_it", *ours]})
    started = time.monotonic()
    with Working(words.MEASURING, usual=words.USUAL_GUIDE, unit="results") as working:
        from ..guide import build, site

        site.require(out)
        evidence = evidence or (BUILT if BUILT.is_dir() else None)
        working.expect(len(PORTS) * sum(DTYPE in case.dtypes for case in build.cases()))
        made = build.build(out, (DTYPE,), lambda result: working.advance(), lambda room: working.at(f"pages: {room}"), evidence)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    click.echo(words.site(out, len(made), size, time.monotonic() - started))
