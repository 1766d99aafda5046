"""Creates the pages "from X to Y": counterparts of names, differences measured at build time, and a
worked example.

A table of topics has one column per framework (`table`). A direction is a pair of columns, with an
overview and a page per section (`direction`). Every snippet runs in its framework's process
(`snippet_process`, `measurement`), and names and measurements determine the class of a row
(`classes`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..site import Page
from . import classes, direction, measurement
from .table import FRAMEWORKS, rows

if TYPE_CHECKING:
    from ..build import Run

DIRECTIONS = tuple((one, other) for one in FRAMEWORKS for other in FRAMEWORKS if one != other and other != "numpy")


def pages(run: "Run") -> Iterator[Page]:
    """Yields the index and the pages of each direction.

    Raises ValueError if a snippet fails or a measurement contradicts a declaration.
    """
    measured = measurement.measure(cpus=run.cpus)
    if problems := classes.check(rows(), measured.values):
        raise ValueError("rows that the measurement refutes:\n  " + "\n  ".join(problems))
    made = {pair: list(direction.pages(*pair, measured)) for pair in DIRECTIONS}
    counts = {pair: overview.values["counts"] for pair, (overview, *_) in made.items()}
    yield Page(
        "translate/index.html",
        "From one framework to another",
        "translation_index.html.jinja",
        {"frameworks": FRAMEWORKS, "directions": DIRECTIONS, "counts": counts, "classes": classes.CLASSES, "rows": rows()},
        summary="API mapping, defaults that differ, weight layouts, a worked example",
    )
    for inside in made.values():
        yield from inside
