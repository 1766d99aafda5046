"""Lints the prose of the project: pages, docstrings, comments, messages and help texts.

    python tools/prose.py                     # everything that git tracks; `make lint` runs it
    python tools/prose.py --show messages rosettaformer/files    # prints the prose, to read it in one go

`tools/prose_exceptions.txt` lists accepted places: a rule, a file, how many. Fewer are reported, too: the list shrinks.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HOUSE = Path(__file__).resolve().parent.parent
OTHERS = "tests/ports/wild/"  # code as other people write it
EXCEPTIONS = HOUSE / "tools" / "prose_exceptions.txt"
COLUMNS = 100  # of a line of Markdown
CELL = 120  # characters in a cell of a table, without the targets of its links
KINDS = ("page", "docstring", "comment", "message")

START = r"(?:^|(?<=[.!?:;] )|(?<=\n\n))[\"'(*_-]*"
RULES = {
    "starts-with-of": re.compile(START + r"Of (?!course)"),
    "starts-with-what": re.compile(START + r"What(?:ever)? [^?]*?(?:[.!:;](?:\s|$)|$)"),
    "said-of": re.compile(r"\b(?:said|says|say|told|tells) of\b"),
    "beside": re.compile(r"\bbesides?\b", re.IGNORECASE),
    "anew": re.compile(r"\banew\b"),
    "by-hand": re.compile(r"\bby hand\b", re.IGNORECASE),
    "in-turn": re.compile(r"\bin turn\b"),
    "such-a-one": re.compile(r"\b(?:such a one|such one|the other one)\b"),
    "lies-in": re.compile(r"\b(?:lies|lie|stands|stand) in\b(?! for)"),
    "british": re.compile(
        r"(?<![\w./-])(?:\w{2,}(?:[aeio]l|[aeginos]n|[ti]m|[aeot]r|nt|as)is(?:e[ds]?|ers?|ing|ations?)|\w+(?:[bglv]i?|hb|on)our(?:s|ed|ing)?"
        r"|\w*(?:abel|odel|ancel|ravel)l(?:ed|ing)|centre[ds]?|\w+lys(?:ed|ing)|licence|artefacts?|grey|learnt|(?:to|after)wards)\b(?![=(/:]|\.\w)",
        re.IGNORECASE,
    ),
}


class Prose(NamedTuple):
    """A text that people read, with the kind of place it has and its first line, counted from 1."""

    kind: str
    line: int
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", metavar="PATH")
    parser.add_argument("--show", choices=KINDS, help="print the prose of this kind and check nothing")
    options = parser.parse_args()
    files = tracked(options.paths)
    if options.show:
        for path in files:
            for one in proses(path):
                if one.kind == options.show:
                    print(f"{path}:{one.line}: {' '.join(one.text.split())}")
        return 0
    places = [(rule, path, line, text) for path in files for rule, line, text in faults(path)]
    accepted = exceptions()
    counts = Counter((rule, str(path)) for rule, path, _, _ in places)
    for rule, path, line, text in places:
        if counts[rule, str(path)] > accepted[rule, str(path)]:
            print(f"{path}:{line}: {rule}: {text}")
    stale = [key for key in accepted if Path(key[1]) in files and counts[key] < accepted[key]]
    for rule, name in stale:
        print(f"{EXCEPTIONS.name}: {name} has {counts[rule, name]} places of {rule}, and {accepted[rule, name]} are accepted")
    return int(bool(stale) or any(counts[key] > accepted[key] for key in counts))


def tracked(paths: list[str]) -> list[Path]:
    """Returns the files of these kinds that git tracks."""
    listed = subprocess.run(["git", "ls-files", "--", *paths], capture_output=True, text=True, check=True).stdout
    return [path for path in map(Path, listed.splitlines()) if _is_ours(path)]


def _is_ours(path: Path) -> bool:
    written = path.suffix in (".md", ".py", ".toml") and not str(path).startswith(OTHERS)
    return written and path.is_file() and not path.is_symlink()


def exceptions() -> Counter[tuple[str, str]]:
    """How many places of a rule are accepted in a file."""
    if not EXCEPTIONS.is_file():
        return Counter()
    rows = [line.split() for line in EXCEPTIONS.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return Counter({(rule, name): int(count) for rule, name, count in rows})


def faults(path: Path) -> Iterator[tuple[str, int, str]]:
    """The places of a file that break a rule: the rule, the line, and the words around the place."""
    if path.suffix == ".md":
        yield from _widths(path.read_text())
    for one in proses(path):
        text = re.sub(r"`+[^`\n]*`+", "`", one.text)
        for rule, pattern in RULES.items():
            for match in pattern.finditer(text):
                around = text[max(match.start() - 25, 0) : match.start() + 60]
                yield rule, one.line + text[: match.start()].count("\n"), " ".join(around.split())


def proses(path: Path) -> list[Prose]:
    """Every text of a file that people read."""
    source = path.read_text()
    if path.suffix == ".md":
        return [Prose("page", line, text) for line, text in _paragraphs(source)]
    if path.suffix == ".toml":
        return [Prose("message", 1, text) for text in _strings(tomllib.loads(source))]
    return sorted([*_docstrings_and_messages(source), *_comments(source)], key=lambda one: one.line)


def _widths(source: str) -> Iterator[tuple[str, int, str]]:
    for number, line in _outside_code(source):
        if line.startswith("|"):
            for cell in re.sub(r"\]\([^)]*\)", "]", line).split("|"):
                if len(cell.strip()) > CELL:
                    yield "wide-cell", number, cell.strip()[:60]
        elif len(line) > COLUMNS and not re.match(r"\[[^\]]+\]: \S+$|!\[[^\]]*\]\(\S+\)$", line):
            yield "wide-line", number, line[:60]


def _outside_code(source: str) -> Iterator[tuple[int, str]]:
    """The lines of Markdown outside blocks of code, with their numbers."""
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, line


def _paragraphs(source: str) -> Iterator[tuple[int, str]]:
    start, rows = 0, list[str]()
    for number, line in [*_outside_code(source), (0, "")]:
        if line.strip() and not line.startswith(("|", "#", "- ")):
            start, rows = (start, rows) if rows else (number, rows)
            rows.append(line.strip())
            continue
        if rows:
            yield start, "\n".join(rows)
        start, rows = number, [line.lstrip("|#- ")] if line.startswith(("|", "#", "- ")) else []
    if rows:
        yield start, "\n".join(rows)


def _docstrings_and_messages(source: str) -> Iterator[Prose]:
    nodes = list(ast.walk(ast.parse(source)))
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    documented = {id(node.body[0].value) for node in nodes if isinstance(node, owners) and ast.get_docstring(node)}  # type: ignore[attr-defined]
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            kind, text = "docstring" if id(node) in documented else "message", node.value
        elif isinstance(node, ast.JoinedStr):
            kind, text = "message", "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        else:
            continue
        if kind == "docstring" or len(text.split()) > 2:
            yield Prose(kind, node.lineno, text)


def _comments(source: str) -> Iterator[Prose]:
    last = Prose("comment", -1, "")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text, follows = token.string.lstrip("# "), token.start[0] == last.line + last.text.count("\n") + 1
            if follows and token.line.lstrip().startswith("#"):
                last = Prose("comment", last.line, f"{last.text}\n{text}")
                continue
            if last.text:
                yield last
            last = Prose("comment", token.start[0], text)
    if last.text:
        yield last


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if len(value.split()) > 2:
            yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


if __name__ == "__main__":
    sys.exit(main())
