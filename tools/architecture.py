"""Draws the diagrams in docs/architecture.md from the imports.

python tools/architecture.py
"""

import re
from collections.abc import Collection, Mapping

from import_graph import HOUSE, PACKAGES, imported_packages, reduced, rooms

from rosettaformer.common.atomic import write_text

PAGE = HOUSE / "docs" / "architecture.md"
OTHERS = ("__main__", "guide.snippets", "judge.templates", "templates")  # the last three hold files for readers


def house() -> dict[str, set[str]]:
    """Returns the application's folders and the four packages, with their imports."""
    graph = rooms(HOUSE / "rosettaformer", OTHERS)
    for room in graph:
        graph[room] |= imported_packages(f"rosettaformer/{room}") & {*PACKAGES}
    return graph | {package: imported_packages(package) & {*PACKAGES} for package in PACKAGES}


def judge() -> dict[str, set[str]]:
    """Returns the judge's folders, with their imports."""
    return rooms(HOUSE / "rosettaformer" / "judge", OTHERS)


def picture(graph: Mapping[str, Collection[str]]) -> str:
    """Returns a diagram with an arrow to each imported folder, without indirect ones."""
    lines = [f"    {room} --> {other}" for room, others in reduced(graph).items() for other in others]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def page() -> str:
    """Returns the page with its diagrams, in the order of the functions above."""
    drawn = iter([picture(house()), picture(judge())])
    return re.sub(r"```mermaid\n.*?```", lambda _: next(drawn), PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


if __name__ == "__main__":
    write_text(PAGE, page())
