"""Tutorials: a model ported from an empty file, a backend, a component. Every step of a page is executed by the tests."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..site import Page
from .session import Session

if TYPE_CHECKING:
    from ..build import Run

__all__ = ["pages"]

NUMBERS = "From an empty file to the numbers of transformers, with"
# (file, folder of its snippets, title, summary, names for the search)
TUTORIALS = (
    ("port-pytorch", "port_torch", "Port GPT-2 to PyTorch in an afternoon", f"{NUMBERS} nn.Linear.", ("port a model", "new-port")),
    ("port-keras", "port_keras", "Port GPT-2 to Keras in an afternoon", f"{NUMBERS} Dense.", ("port a model", "new-port")),
    ("port-flax", "port_flax", "Port GPT-2 to Flax NNX in an afternoon", f"{NUMBERS} nnx.Linear.", ("port a model", "new-port")),
    (
        "add-a-backend", "add_a_backend", "Add a backend", "A fifth one in plain Python lists, from softmax to the whole model.",
        ("rosettaformer.ports", "entry point", "NotCovered", "another language"),
    ),
    (
        "add-a-component", "add_a_component", "Add a component", "RMS normalisation: reference, gradient, cases, defect, three ports.",
        ("RMSNorm", "contributing"),
    ),
)  # fmt: skip


def pages(run: "Run") -> Iterator[Page]:
    """The index, and a page for each tutorial."""
    first = {"session": Session("start")}
    yield Page("tutorials/index.html", "Start here", "tutorials.html.jinja", first, "Install, two commands, which page for which need.")
    for file, folder, title, summary, names in TUTORIALS:
        yield Page(f"tutorials/{file}.html", title, f"tutorial-{file}.html.jinja", {"session": Session(folder)}, summary, names)
