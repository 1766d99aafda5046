"""Makes docs/files.md, the table of files.

python tools/files.py
"""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from evidence import HOUSE

__all__ = ["PAGE", "page"]

PAGE = HOUSE / "docs" / "files.md"
REFERENCE, PORTS = "reference_numpy", {"impl_torch": "PyTorch", "impl_tf": "TensorFlow/Keras", "impl_jax": "JAX/Flax"}


def says(path: Path) -> str:
    """The first sentence of a file's docstring."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) ", text)[0].rstrip(".:").replace("|", "\\|")


def modules(folder: str) -> dict[str, Path]:
    """The files of a folder by their names, without those that only mark it."""
    found = sorted((HOUSE / folder).glob("*.py"))
    return {path.stem: path for path in found if path.stem not in ("__init__", "__main__")}


def _row(what: str, file: str, packages: Iterable[str]) -> str:
    links = []
    for package in packages:
        path, name = f"{package}/{file}.py", package.removeprefix("impl_").removeprefix("reference_")
        links.append(f"[{name}](../{path})" if (HOUSE / path).is_file() else "")
    return f"| {what} | {' | '.join(links)} |"


def _ports(folder: str = "") -> list[str]:
    """What the ports have beside the twins, in a folder of theirs."""
    found = {port: modules(f"{port}/{folder}") for port in PORTS}
    names = sorted({name for each in found.values() for name in each} - ({*modules(REFERENCE)} if not folder else set()))
    lines = [f"| file | what it is | {' | '.join(PORTS.values())} |", "|---|---|---|---|---|"]
    for name in names:
        path = next(each[name] for each in found.values() if name in each)
        lines.append(_row(f"`{name}` | {says(path)}", f"{folder}{name}", PORTS))
    return lines


def page() -> str:
    """The table."""
    top, reference = HOUSE / "rosettaformer", modules(REFERENCE)
    twins = [name for name in reference if all(name in modules(port) for port in PORTS)]
    own = {name: path for name, path in reference.items() if name not in twins}
    folders = sorted({path.name for port in PORTS for path in (HOUSE / port).iterdir() if (path / "__init__.py").is_file()})
    marks = sorted([*top.glob("*/__init__.py"), *top.glob("*/*/__init__.py")])
    rooms = {mark.parent.relative_to(top): says(mark) for mark in marks}
    lines = [
        "# Which file do I read?",
        "",
        "Made by `make docs`.",
        "",
        "## Twins",
        "",
        "A file of the reference and its twins have the same name, the same public names in the same order, and the same argument",
        "names. `tests/` holds that.",
        "",
        "| file | what it is | reference | PyTorch | TensorFlow/Keras | JAX/Flax |",
        "|---|---|---|---|---|---|",
        *(_row(f"`{name}` | {says(reference[name])}", name, (REFERENCE, *PORTS)) for name in twins),
        "",
        "## The reference only",
        "",
        "Declarations and checks that all four packages share, and what NumPy needs for itself.",
        "",
        "| file | what it is |",
        "|---|---|",
        *(f"| [{name}](../{REFERENCE}/{name}.py) | {says(path)} |" for name, path in own.items()),
        "",
        "## The ports beside their twins",
        "",
        *_ports(),
        *(line for folder in folders for line in ("", f"### `{folder}/`", "", *_ports(f"{folder}/"))),
        "",
        "## The judge and the tools around it",
        "",
        "| folder of `rosettaformer` | what it is |",
        "|---|---|",
        *(f"| [{room}/](../rosettaformer/{room}) | {text} |" for room, text in rooms.items()),
        "",
        "## The benchmarks",
        "",
        "`python -m bench` times ours beside every peer in one run, from a checkout: the wheel does not contain it.",
        "",
        "| file of `bench` | what it is |",
        "|---|---|",
        *(f"| [{name}](../bench/{name}.py) | {says(path)} |" for name, path in modules("bench").items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
