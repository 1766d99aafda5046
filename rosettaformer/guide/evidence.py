"""Pages for the results of `make evidence`: an index, and a page per step that has one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .site import Page
from .tutorials.documents import Document

if TYPE_CHECKING:
    from .build import Run


def pages(run: "Run") -> Iterator[Page]:
    """Yields the index and a page for each step."""
    built = {step.parent.name: json.loads(step.read_text(encoding="utf-8")) for step in _steps(run.evidence)}
    if not built or run.evidence is None:
        return
    shown = [(name, page) for name in built for page in sorted((run.evidence / name).glob("*.md"))]
    summary = "Results of long runs: diagnosis of every known bug, unseen bugs, meshes, exports."
    yield Page(
        "evidence/index.html", "Evidence", "evidence.html.jinja", {"built": built, "shown": dict(shown)}, summary, ("make evidence",)
    )
    for name, file in shown:
        document = Document(file.read_text(encoding="utf-8"), f"evidence/{name}", {})
        lead = f"Built by make evidence STEP={name} at revision {built[name]['revision']} on {built[name]['date']}."
        yield Page(
            f"evidence/{name}.html", document.title, "document.html.jinja", {"document": document, "lead": lead}, built[name]["title"]
        )


def _steps(root: Path | None) -> list[Path]:
    """Returns the files that describe finished steps."""
    return sorted(path for path in root.glob("*/made.json") if not path.parent.suffix) if root else []
