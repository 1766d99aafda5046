"""Tutorials: a model ported from an empty file, a backend, a component. Every step of a page is executed by the tests."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..site import Page
from .session import Session

if TYPE_CHECKING:
    from ..build import Run

__all__ = ["pages"]

# file -> (title, summary, names for the search, the folder of its snippets)
PORTS = {
    "port-pytorch": (
        "Port GPT-2 to PyTorch in an afternoon",
        "From an empty file to transformers' own numbers, with nn.Linear.",
        "port_torch",
    ),
    "port-keras": ("Port GPT-2 to Keras in an afternoon", "From an empty file to transformers' own numbers, with Dense.", "port_keras"),
    "port-flax": (
        "Port GPT-2 to Flax NNX in an afternoon",
        "From an empty file to transformers' own numbers, with nnx.Linear.",
        "port_flax",
    ),
}
OTHERS = {
    "add-a-backend": ("Add a backend", "A fifth one in plain Python lists, from softmax to the whole model.", "add_a_backend"),
    "add-a-component": ("Add a component", "RMS normalisation: reference, gradient, cases, defect, three ports.", "add_a_component"),
}


def pages(run: "Run") -> Iterator[Page]:
    """The index, and a page for each tutorial."""
    yield Page("tutorials/index.html", "Start here", "tutorials.html.jinja", {"session": Session("start")})
    for name, (title, summary, folder) in (PORTS | OTHERS).items():
        template = f"tutorial-{name}.html.jinja"
        yield Page(f"tutorials/{name}.html", title, template, {"session": Session(folder)}, summary, ("tutorial", folder.replace("_", " ")))
