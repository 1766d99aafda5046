"""Makes pages "from X to Y": each name's counterpart, what differs, measured when the page is built, and a worked example.

One table of topics has a column for each framework (`table`); a page is a pair of its columns. Every snippet of it is executed in its
framework's process (`server`, `measurement`), and the class of a row follows from the names and the measurements (`classes`).
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
    """Yields the index, and a page for each direction. Raises ValueError if a snippet fails, or a measurement refutes a declaration."""
    measured = measurement.measure(cpus=run.cpus)
    if problems := classes.check(rows(), measured.values):
        raise ValueError("rows that the measurement refutes:\n  " + "\n  ".join(problems))
    made = {pair: direction.page(*pair, measured) for pair in DIRECTIONS}
    counts = {pair: page.values["counts"] for pair, page in made.items()}
    yield Page(
        "translate/index.html",
        "From one framework to another",
        "translation_index.html.jinja",
        {"frameworks": FRAMEWORKS, "directions": DIRECTIONS, "counts": counts, "classes": classes.CLASSES, "rows": rows()},
        summary="API mapping, defaults that differ, weight layouts, a worked example",
    )
    yield from made.values()
