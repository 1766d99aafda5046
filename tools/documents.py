"""The documents that a command makes, and the line in each that says of which version of the suite it is."""

import re
from pathlib import Path

from rosettaformer.conformance.case import SUITE_VERSION

__all__ = ["DOCUMENTS", "HOUSE", "SLOW", "made_by", "made_of", "stamped"]

HOUSE = Path(__file__).resolve().parent.parent
# document -> the target of `make` that makes it, or the outputs in it
DOCUMENTS = {
    "docs/api.md": "api",
    "docs/artefacts.md": "artefacts",
    "docs/check.md": "matrix",
    "docs/compare.md": "published",
    "docs/field-bugs.md": "field-bugs",
    "docs/files.md": "files",
    "docs/keras-hub.md": "keras-hub",
    "docs/like.md": "session",
    "docs/meshes.md": "meshes",
    "docs/mutation.md": "mutation",
    "docs/performance.md": "performance",
    "docs/porting.md": "session",
    "docs/scaling.md": "scaling",
    "docs/sharding-faults.md": "sharding-faults",
    "docs/wild.md": "wild",
}
# Evidence that takes long to make. Each document states the suite version of its run, which may be an earlier one.
SLOW = (
    "docs/artefacts.md", "docs/compare.md", "docs/field-bugs.md", "docs/meshes.md", "docs/mutation.md",
    "docs/scaling.md", "docs/sharding-faults.md", "docs/wild.md",
)  # fmt: skip
LINE = re.compile(r"Made by `make ([\w-]+)` with suite version (\d+)\.")


def made_by(target: str) -> str:
    """The line of a document that this target makes."""
    return f"Made by `make {target}` with suite version {SUITE_VERSION}."


def made_of(text: str) -> list[tuple[str, int]]:
    """The target and the version of each such line."""
    return [(target, int(version)) for target, version in LINE.findall(text)]


def stamped(text: str) -> str:
    """The text with this version in its line."""
    return LINE.sub(lambda found: made_by(found[1]), text)
