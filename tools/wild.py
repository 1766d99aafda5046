"""Diagnoses bugs that were written without knowledge of the catalogue and the reference.

Run it with `make evidence STEP=wild`. `tests/ports/wild/` has correct ports in common styles;
`mistakes.toml` lists the bugs, each an edit of one of them. `second/` has more.
"""

import functools
import re
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence import kept, write

from rosettaformer.judge.diagnosis import Diagnosis, diagnose

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "ports" / "wild"


@dataclass(frozen=True)
class Mistake:
    """One bug: an edit of a correct file.

    accept: a pattern of a finding that states the bug; "" if none has to.
    """

    id: str
    file: str
    components: Sequence[str]
    accept: str
    what: str
    edits: Sequence[tuple[str, str]]

    def port(self, folder: Path, root: Path) -> Path:
        """Returns the file with the bug in it. root: the folder of correct files."""
        text = (root / self.file).read_text()
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.id}: the text to edit must occur once; it occurs {text.count(old)} times: {old!r}")
            text = text.replace(old, new)
        path = folder / f"wild_{self.id}.py"
        path.write_text(text)
        return path


@dataclass(frozen=True)
class Said:
    """The diagnosis of a bug; the seconds to its first sentence, and in total."""

    mistake: Mistake
    diagnosis: Diagnosis
    first: float
    total: float

    @property
    def accepted(self) -> str:
        """The first line of the finding that states the bug; "" if none does."""
        accept = self.mistake.accept
        found = (finding.text for finding in self.diagnosis.findings if accept and re.search(accept, finding.text, re.DOTALL))
        return next((text.splitlines()[0] for text in found), "")

    @property
    def wrong(self) -> bool:
        """Whether a known bug is named, but none that states the bug."""
        return not self.accepted and any(finding.verdict in ("explained", "indistinguishable") for finding in self.diagnosis.findings)


def mistakes(folder: Path = FOLDER) -> list[Mistake]:
    """Returns all bugs of a folder."""
    files = tomllib.loads((folder / "mistakes.toml").read_text(encoding="utf-8"))
    each = ((name, file, *row) for file, rows in files.items() for name, row in rows.items())
    return [Mistake(name, file, parts.split(), accept, what, edits) for name, file, parts, accept, what, *edits in each]


def say(mistake: Mistake, folder: Path, root: Path = FOLDER) -> Said:
    """Diagnoses the bug."""
    start = time.perf_counter()
    heard: list[float] = []
    port = str(mistake.port(folder, root))
    found = diagnose(port, mistake.components, gradients=False, say=lambda _: heard.append(time.perf_counter() - start))
    return Said(mistake, found, heard[0] if heard else 0.0, time.perf_counter() - start)


def row(mistake: Mistake, root: Path) -> dict[str, Any]:
    """Returns a bug's row."""
    with tempfile.TemporaryDirectory() as folder:
        said = say(mistake, Path(folder), root)
    findings = said.diagnosis.findings
    text = said.accepted or next((finding.text.splitlines()[0] for finding in findings), "nothing")
    verdict = "named" if said.accepted else "wrong" if said.wrong else str(findings[0].verdict) if findings else "missed"
    return {
        "id": mistake.id,
        "what": mistake.what,
        "verdict": verdict,
        "said": text.replace("|", "/"),
        "first": said.first,
        "total": said.total,
    }


def main() -> None:
    """Writes the page."""
    out = Path(sys.argv[1])
    lines = ["# Diagnoses of bugs written without knowledge of the catalogue", "", HEAD]
    for title, root in (("The first bugs", FOLDER), ("The second", FOLDER / "second")):
        found = [kept(out, f"{root.name} {mistake.id}", functools.partial(row, mistake, root)) for mistake in mistakes(root)]
        lines += ["", f"## {title}", "", *_counts(found), "", *_table(found)]
    write(out, "wild.md", "\n".join(lines) + "\n")


HEAD = """`tests/ports/wild/` has models and components in PyTorch, Keras, Flax Linen, JAX and NumPy in the styles of
tutorials and repositories. Their bugs were written only from the paper and the frameworks'
documentation, without knowledge of the catalogue and the reference. Each is an edit of a correct file.
*named*: a finding states the bug; otherwise the first finding's verdict is shown."""


def _counts(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    verdicts = Counter(one["verdict"] for one in found)
    yield f"- Verdicts on {len(found)} bugs: {', '.join(f'{verdict} {count}' for verdict, count in verdicts.most_common())}."
    for words, name in (("first sentence", "first"), ("in all", "total")):
        seconds = sorted(one[name] for one in found)
        yield f"- Seconds to the {words}, median and largest: {seconds[len(seconds) // 2]:.0f} and {seconds[-1]:.0f}."


def _table(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "| bug | description | verdict | first sentence of diagnosis | first sentence, s | total, s |"
    yield "|---|---|---|---|---|---|"
    for one in found:
        yield f"| `{one['id']}` | {one['what']} | {one['verdict']} | {one['said']} | {one['first']:.0f} | {one['total']:.0f} |"


if __name__ == "__main__":
    main()
