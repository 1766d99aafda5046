"""Mistakes that were written without sight of the catalogue and of the reference, and what diagnosis says of each.

    python tools/wild.py docs/wild.md

`tests/ports/wild/` has correct ports in plain styles; `mistakes.toml` the mistakes, each an edit of one of them. `second/` has more, with
what was said of each when it was first diagnosed, before anything was added for it.
"""

import json
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from documents import made_by

from rosettaformer.conformance.diagnosis import Diagnosis, diagnose

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "ports" / "wild"


@dataclass(frozen=True)
class Mistake:
    """One mistake: an edit of a correct file.

    what: what is computed instead of what. accept: patterns, one of which the text of a finding matches that says so; none where no
    finding is expected to.
    """

    id: str
    file: str
    components: Sequence[str]
    what: str
    edits: Sequence[tuple[str, str]]
    accept: Sequence[str] = ()

    def port(self, folder: Path) -> Path:
        """The file with the mistake in it."""
        text = (FOLDER / self.file).read_text()
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.id}: the text to be edited must occur once; got {text.count(old)} times: {old!r}")
            text = text.replace(old, new)
        path = folder / f"wild_{self.id}.py"
        path.write_text(text)
        return path


@dataclass(frozen=True)
class Said:
    """What diagnosis said of a mistake; the seconds to its first sentence, to the third, after two about how it fails, and in all."""

    mistake: Mistake
    diagnosis: Diagnosis
    first: float
    cause: float
    total: float

    @property
    def accepted(self) -> str:
        """The first line of the finding that says what the mistake is; empty where none does."""
        lines = [finding.text.splitlines()[0] for finding in self.diagnosis.findings for pattern in self.mistake.accept
                 if re.search(pattern, finding.text)]  # fmt: skip
        return next(iter(lines), "")

    @property
    def wrong(self) -> bool:
        """Whether an alteration is named, and none that says what the mistake is."""
        return not self.accepted and any(finding.verdict in ("explained", "indistinguishable") for finding in self.diagnosis.findings)


def mistakes(folder: Path = FOLDER) -> list[Mistake]:
    """All of them: tables by file and id; `components` is the whole model where a table has none."""
    with open(folder / "mistakes.toml", "rb") as file:
        tables = tomllib.load(file)
    whole = {"components": ["transformer"]}
    return [Mistake(id=name, file=port, **whole | each) for port, of in tables.items() for name, each in of.items()]


def say(mistake: Mistake, folder: Path) -> Said:
    """Diagnoses the mistake."""
    start = time.perf_counter()
    heard: list[float] = []
    port = str(mistake.port(folder))
    found = diagnose(port, mistake.components, gradients=False, say=lambda _: heard.append(time.perf_counter() - start))
    first, _, cause = (*heard, 0.0, 0.0, 0.0)[:3]
    return Said(mistake, found, first, cause, time.perf_counter() - start)


def row(said: Said) -> str:
    """The line of the page, without times."""
    text = said.accepted or next((finding.text.splitlines()[0] for finding in said.diagnosis.findings), "nothing")
    return f"| {said.mistake.id} | {said.mistake.what} | {'' if said.accepted else 'no: '}{text.replace('|', '/')} |"


def main() -> None:
    """Writes the page to the file that is named."""
    with tempfile.TemporaryDirectory() as folder:
        found = [say(mistake, Path(folder)) for mistake in mistakes()]
    Path(sys.argv[1]).write_text(_page(found))


def _page(found: Sequence[Said]) -> str:
    accepted, caught = sum(bool(one.accepted) for one in found), sum(bool(one.diagnosis.findings) for one in found)
    named = {"to the first sentence": "first", "to the third, mostly the cause,": "cause", "in all": "total"}
    seconds = {words: sorted(getattr(one, name) for one in found) for words, name in named.items()}
    middle = len(found) // 2
    lines = [
        "# What diagnosis says of mistakes that it does not know",
        "",
        made_by("wild"),
        "It diagnoses the mistakes of `tests/ports/wild/`: models and components in PyTorch, Keras, Flax Linen, JAX and NumPy in the",
        "styles of tutorials and repositories. They were written from the paper and the frameworks' documentation only, without sight",
        "of the catalogue and of the reference. Each mistake is an edit of a correct file, with a sentence that says what it is.",
        "",
        "Classes of mistakes that were missing were added to diagnosis. So the page says what diagnosis does with these, not with mistakes",
        "that nobody has seen: of the 60 that were written last, 45 (75 %) were named or described before anything was added for them, and",
        "1 wrongly.",
        "",
        f"- Caught: {caught} of {len(found)}.",
        f"- Named, or described so that the cause is said: {accepted} of {len(found)} ({accepted / len(found):.0%}).",
        f"- Wrong names: {sum(one.wrong for one in found)}.",
        "- Seconds on two cores, the port's start among them, median and largest:",
        *(f"  - {words} {each[middle]:.0f} and {each[-1]:.0f}" for words, each in seconds.items()),
        "",
        "| mistake | what it is | what diagnosis says first of it | first sentence, s | in all, s |",
        "|---|---|---|---|---|",
        *(f"{row(one)} {one.first:.0f} | {one.total:.0f} |" for one in found),
    ]
    return "\n".join([*lines, *second()]) + "\n"


ROUNDS = {
    1: ("on cores that had other work", "The wrong one is a constant that was fitted to a single loss; a constant needs two numbers."),
    2: (
        "on quiet cores",
        "The wrong one is a cache that is kept from call to call, of which it is said that the rows of a batch depend on each other.",
    ),
    3: ("on cores that had other work", ""),
}


def second() -> list[str]:
    """What was said of the mistakes of the second folder at first sight."""
    what = {mistake.id: mistake.what for mistake in mistakes(FOLDER / "second")}
    found = json.loads((FOLDER / "second" / "said.json").read_text())
    return [
        "",
        "## At first sight",
        "",
        "The mistakes of `tests/ports/wild/second/` were written in the same way, in rounds of 40, ten of each in loss, optimiser,",
        "schedule, cache and search, each with its cause before it was run. This is what diagnosis said of them when it saw them",
        "first, and whether it is true as a reader of the code judges it. What a round showed was put right before the next one.",
        "",
        *(line for number in ROUNDS for line in _round(number, [one for one in found if one["round"] == number])),
        "",
        "| mistake | what it is | round | judged | what diagnosis says first of it |",
        "|---|---|---|---|---|",
        *(f"| `{one['id']}` | {what[one['id']]} | {one['round']} | {one['judged']} | {one['said'].replace('|', '/')} |" for one in found),
    ]


def _round(number: int, found: Sequence[dict[str, Any]]) -> list[str]:
    """The counts and times of a round."""
    cores, note = ROUNDS[number]
    counts = {word: sum(one["judged"] == word for one in found) for word in ("named", "described", "unexplained", "wrong")}
    times = {name: sorted(one[name] for one in found) for name in ("first", "total")}
    middle = len(found) // 2
    seconds = ", ".join(
        f"{words} {times[name][middle]:.0f} and {times[name][-1]:.0f}" for words, name in (("first sentence", "first"), ("in all", "total"))
    )
    said = "; ".join(f"{word} {count}" for word, count in counts.items())
    return [f"- Round {number}: {said}, of {len(found)}. Seconds on two cores, {cores}, median and largest: {seconds}. {note}".rstrip()]


if __name__ == "__main__":
    main()
