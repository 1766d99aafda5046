"""`rosettaformer guide`."""

import time
from pathlib import Path

import click

from ..common.backends import PORTS, needs_of
from ..common.extras import require
from .progress import Working

BUILT = Path(".evidence")
DTYPE = "float32"  # that is measured


@click.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, metavar="DIR", help="The folder of the site.")
@click.option(
    "--evidence",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Also show what make evidence has built. [default: .evidence, if there is one]",
)
def guide(out: Path, evidence: Path | None) -> None:
    """Write the porting guide: a site to open in a browser, made from the source and measured now.

    DIR is a new folder, or one that an earlier run wrote. Open DIR/index.html; nothing needs a network.
    """
    ours = [package for packages in needs_of(*PORTS).values() for package in packages]
    require("the guide", {"guide": ["jinja2", "pygments", "markdown_it", *ours]})
    started = time.monotonic()
    usual = "the whole guide takes about three minutes on two cores"
    with Working("measuring our ports", usual=usual, unit="results") as working:
        from ..guide import build, site

        site.require(out)
        evidence = evidence or (BUILT if BUILT.is_dir() else None)
        working.expect(len(PORTS) * sum(DTYPE in case.dtypes for case in build.cases()))
        made = build.build(out, (DTYPE,), lambda result: working.advance(), lambda room: working.at(f"pages: {room}"), evidence)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    click.echo(f"{out}: {len(made)} pages, {size / 1e6:.1f} MB, in {time.monotonic() - started:.0f} s")
