"""Makes docs/files.md, the tables of files.

python tools/files.py
"""

import ast
import re
from pathlib import Path

from evidence import HOUSE

__all__ = ["PAGE", "page"]

PAGE = HOUSE / "docs" / "files.md"
REFERENCE, PORTS = "reference_numpy", {"impl_torch": "PyTorch", "impl_tf": "TensorFlow/Keras", "impl_jax": "JAX/Flax"}


def says(path: Path) -> str:
    """Returns the first sentence of a file's docstring."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) ", text)[0].rstrip(".:").replace("|", "\\|")


def modules(folder: str) -> dict[str, Path]:
    """The files of a folder by their names, without those that only mark it."""
    found = sorted((HOUSE / folder).glob("*.py"))
    return {path.stem: path for path in found if path.stem not in ("__init__", "__main__")}


CELL = 105  # characters
HEAD = ["| file | contents |", "|---|---|"]


def _row(folder: str, name: str, text: str, end: str = ".py", note: str = "") -> str:
    """A row of a table: the file, linked from docs/, and its contents."""
    return f"| [{name}](../{folder}{name}{end}) | {_short(text)}{note} |"


def _short(text: str) -> str:
    """The text without the last clauses that a cell has no room for; a clause ends at a comma only where too little would stay."""
    kept = ""
    for ends in (";:", ",;:"):
        clauses = re.split(rf"(?<=[{ends}]) ", text)
        while len(clauses) > 1 and len(" ".join(clauses)) > CELL:
            clauses.pop()
        kept = kept if len(kept) > CELL // 4 else " ".join(clauses).rstrip(ends)
    return kept


def _ports(folder: str = "") -> list[str]:
    """The files of the ports that have no twin in the reference, in one of their folders."""
    found = {port: modules(f"{port}/{folder}") for port in PORTS}
    names = sorted({name for each in found.values() for name in each} - ({*modules(REFERENCE)} if not folder else set()))
    rows = []
    for name in names:
        have = [port for port, each in found.items() if name in each]
        note = "" if len(have) == len(PORTS) else f" (only {' and '.join(port.removeprefix('impl_') for port in have)})"
        rows.append(_row(f"{have[0]}/{folder}", name, says(found[have[0]][name]), note=note))
    return [*HEAD, *rows]


def page() -> str:
    """The tables."""
    top, reference = HOUSE / "rosettaformer", modules(REFERENCE)
    twins = [name for name in reference if all(name in modules(port) for port in PORTS)]
    folders = sorted({path.name for port in PORTS for path in (HOUSE / port).iterdir() if (path / "__init__.py").is_file()})
    rooms = {mark.parent.relative_to(top): says(mark) for mark in sorted([*top.glob("*/__init__.py"), *top.glob("*/*/__init__.py")])}
    lines = [
        "# Which file do I read?",
        "",
        "This page lists the files of the four packages, the folders of `rosettaformer` and the benchmarks,",
        "each with the first sentence of its docstring. Made by `make docs`.",
        "",
        "## Twins",
        "",
        "Each of these files is in `reference_numpy`, `impl_torch`, `impl_tf` and `impl_jax`, with the same",
        "public names in the same order and the same argument names. The tests hold that.",
        "",
        *HEAD,
        *(_row(f"{REFERENCE}/", name, says(reference[name])) for name in twins),
        "",
        "## The reference only",
        "",
        "Declarations and checks that all four packages share, and helpers that only NumPy needs.",
        "",
        *HEAD,
        *(_row(f"{REFERENCE}/", name, says(path)) for name, path in reference.items() if name not in twins),
        "",
        "## The ports only",
        "",
        *_ports(),
        *(line for folder in folders for line in ("", f"### `{folder}/`", "", *_ports(f"{folder}/"))),
        "",
        "## The judge and the tools around it",
        "",
        "| folder of `rosettaformer` | contents |",
        "|---|---|",
        *(_row("rosettaformer/", str(room), text, "") for room, text in rooms.items()),
        "",
        "## The benchmarks",
        "",
        "`python -m bench` times ours and every peer in one run, in a checkout; the wheel lacks it.",
        "",
        *HEAD,
        *(_row("bench/", name, says(path)) for name, path in modules("bench").items()),
        "",
        "Next: [architecture.md](architecture.md) shows how the folders depend on each other.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
