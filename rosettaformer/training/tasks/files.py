"""A user's own pairs: two files aligned by line, or one of tab-separated pairs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...reading import damage, decode, read_lines
from . import Data, Pair, Task, split

__all__ = ["Files"]

SHOWN = 10  # problems that the message lists; the rest are counted
Problem = tuple[str, int, str]  # file, line counted from 1, what is wrong


@dataclass(frozen=True, kw_only=True)
class Files(Task):
    """Lines of `source` and `target`, or of `tsv`: UTF-8, one text a line, none empty.

    Equal sources stay on one side of the split. skip_damaged leaves out the lines that cannot be used instead of refusing them.
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
            given = [f"--{name}" for name in ("source", "target", "tsv") if getattr(self, name)]
            raise ValueError(f"the task files needs --source and --target, or --tsv alone; got {', '.join(given) or 'none of them'}")

    def data(self) -> Data:
        pairs: list[Pair] = []
        shown: list[Problem] = []
        count = 0
        for found in self._tsv(Path(self.tsv)) if self.tsv else self._aligned(Path(str(self.source)), Path(str(self.target))):
            if len(found) == 2:
                pairs.append(found)
                continue
            count += 1
            if len(shown) < SHOWN:
                shown.append(found)
        if count and not self.skip_damaged:
            raise ValueError(_message(shown, count))
        notes = [f"left out {count} damaged lines of {len(pairs) + count}"] if count else []
        return split(pairs, self.held_out, self.seed, notes)

    def _tsv(self, path: Path) -> Iterator[Pair | Problem]:
        for number, raw in enumerate(_lines(path), start=1):
            line, problem = decode(raw)
            fields = line.split("\t")
            if not problem and len(fields) != 2:
                problem = f"must be a source, a tab and a target; got {len(fields)} fields"
            problem = problem or next(filter(None, map(damage, fields)), "")
            yield (str(path), number, problem) if problem else (fields[0], fields[1])

    def _aligned(self, *paths: Path) -> Iterator[Pair | Problem]:
        counts = [sum(1 for _ in _lines(path)) for path in paths]
        if counts[0] != counts[1]:  # which pairs belong together is lost: nothing that could be left out
            raise ValueError(
                f"{paths[0]} and {paths[1]} must have the same number of lines; got {counts[0]} and {counts[1]}: "
                f"line {min(counts) + 1} of {paths[counts.index(max(counts))]} has no partner"
            )
        for number, raws in enumerate(zip(*map(_lines, paths), strict=True), start=1):
            texts: list[str] = []
            found: list[Problem] = []
            for path, raw in zip(paths, raws, strict=True):
                line, problem = decode(raw)
                texts.append(line)
                if problem := problem or damage(line):
                    found.append((str(path), number, problem))
            yield from found
            if not found:
                yield texts[0], texts[1]


def _lines(path: Path) -> Iterator[bytes]:
    if not path.is_file():
        raise ValueError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    with path.open("rb") as file:
        yield from read_lines(file)


def _message(shown: list[Problem], count: int) -> str:
    listed = [f"{file}, line {line}: {what}" for file, line, what in shown]
    more = [f"and {count - len(shown)} more"] if count > len(shown) else []
    return f"{count} damaged lines (--skip-damaged leaves them out):\n  " + "\n  ".join(listed + more)
