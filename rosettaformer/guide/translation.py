"""Pages of the guide."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .site import Page

if TYPE_CHECKING:
    from .build import Run

__all__ = ["pages"]


def pages(run: "Run") -> Iterator[Page]:
    """The index."""
    yield Page("translate/index.html", "translation", "section.html.jinja", {"lead": ""})
