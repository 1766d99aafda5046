"""Reads the user's own pairs: two line-aligned files, or one with tab-separated pairs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ....common.reading import damage, decode, read_lines
from . import Data, Pair, Task, split

SHOWN = 10  # problems listed in the message
Row = tuple[list[str], list[str]]  # texts, and their problems with file and line


@dataclass(frozen=True, kw_only=True)
class Files(Task):
    """Pairs from `source` and `target`, or from `tsv`: UTF-8, one non-empty text per line.

    Equal sources stay on one side of the split. skip_damaged: leaves out unusable lines.
    """

    name: ClassVar[str] = "files"
    defaults: ClassVar[Mapping[str, Any]] = {"vocabulary": 8000}
    source: str | None = None
    target: str | None = None
    tsv: str | None = None
    skip_damaged: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.source is None) != (self.target is None) or (self.source is None) == (self.tsv is None):
            given = [name for name in ("source", "target", "tsv") if getattr(self, name)]
            raise ValueError(f"the task files needs either source and target, or tsv; got {', '.join(given) or 'none of them'}")

    def data(self) -> Data:
        pairs: list[Pair] = []
        shown: list[str] = []
        count = 0
        for texts, problems in _tsv(Path(self.tsv)) if self.tsv else _aligned(Path(str(self.source)), Path(str(self.target))):
            if not problems:
                pairs.append((texts[0], texts[1]))
            shown += problems[: SHOWN - len(shown)]
            count += len(problems)
        if count and not self.skip_damaged:
            raise ValueError(_message(shown, count))
        notes = [f"skipped {count} damaged lines of {len(pairs) + count}"] if count else []
        return split(pairs, self.held_out, self.seed, notes)


def _tsv(path: Path) -> Iterator[Row]:
    for number, raw in enumerate(_lines(path), start=1):
        line, problem = decode(raw)
        fields = line.split("\t")
        if not problem and len(fields) != 2:
            problem = f"must be a source, a tab and a target; got {len(fields)} fields"
        problem = problem or next(filter(None, map(damage, fields)), "")
        yield fields, [f"{path}, line {number}: {problem}"] if problem else []


def _aligned(*paths: Path) -> Iterator[Row]:
    counts = [sum(1 for _ in _lines(path)) for path in paths]
    if counts[0] != counts[1]:  # the alignment is lost, so skipping lines would not help
        raise ValueError(
            f"{paths[0]} and {paths[1]} must have the same number of lines; got {counts[0]} and {counts[1]}: "
            f"line {min(counts) + 1} of {paths[counts.index(max(counts))]} has no partner"
        )
    for number, raws in enumerate(zip(*map(_lines, paths), strict=True), start=1):
        lines = [decode(raw) for raw in raws]
        wrong = [problem or damage(line) for line, problem in lines]
        yield [line for line, _ in lines], [f"{path}, line {number}: {what}" for path, what in zip(paths, wrong, strict=True) if what]


def _lines(path: Path) -> Iterator[bytes]:
    if not path.is_file():
        raise ValueError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    with path.open("rb") as file:
        yield from read_lines(file)


def _message(shown: list[str], count: int) -> str:
    more = [f"and {count - len(shown)} more"] if count > len(shown) else []
    return f"{count} damaged lines; skip them with --data skip_damaged=true:\n  " + "\n  ".join(shown + more)
