"""A page for each defect of the catalogue: wrong and right in each framework, what it does to the cases, and how diagnosis says it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..conformance.defects import Defect, all_defects
from ..conformance.reference.components import COMPONENTS
from .code import Code
from .mistakes import FRAMEWORKS, all_mistakes
from .site import Page

if TYPE_CHECKING:
    from .build import Run

__all__ = ["pages"]

TITLES = {"torch": "PyTorch", "tf": "TensorFlow, Keras", "jax": "JAX, Flax"}


def pages(run: "Run") -> Iterator[Page]:
    """The index, and the pages in the order of the components."""
    order = list(COMPONENTS)
    defects = sorted(all_defects().values(), key=lambda defect: order.index(defect.component))
    yield Page(
        "defects/index.html",
        "Defects",
        "section.html.jinja",
        {"lead": "Real mistakes of ports. Each is injected, caught and named by the tests."},
    )
    for defect in defects:
        yield _page(defect)


def _page(defect: Defect) -> Page:
    mistakes = all_mistakes().get(defect.id, {})
    frameworks = []
    for framework in FRAMEWORKS:
        mistake = mistakes.get(framework)
        edits = [
            {
                side: Code(getattr(edit, side), f"mistakes/{defect.id}.{framework}", caption=f"impl_{framework}/{edit.file}")
                for side in ("wrong", "right")
            }
            for edit in (mistake.edits if mistake else ())
        ]
        frameworks.append({"name": framework, "title": TITLES[framework], "mistake": mistake, "edits": edits, "fix": defect.fix[framework]})
    return Page(
        f"defects/{defect.id}.html",
        f"{defect.id}: {defect.title}",
        "defect.html.jinja",
        {"defect": defect, "frameworks": frameworks},
        summary=defect.component,
        names=(defect.id, defect.title, *defect.variants),
    )
