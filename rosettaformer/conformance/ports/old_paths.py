"""Finds old import paths in the files of ports: they work, and are reported with the path to use."""

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path

HOME = "rosettaformer.ports"
# the modules in which port files have found these names; a module that moves again is added here, and the name stays importable from it
OLD = {
    "rosettaformer.conformance.port": ("NotCovered", "Unsupported"),
    "rosettaformer.conformance.ports.port": ("NotCovered", "Unsupported"),
    "rosettaformer.conformance.ports.names": ("Names",),
    "rosettaformer.conformance.case": ("Case",),
    "rosettaformer.conformance.cases.case": ("Case",),
}


def old_paths(file: str) -> str:
    """Returns one line that names the old paths that a Python file imports; empty if there are none."""
    found: dict[str, list[str]] = {}
    with contextlib.suppress(OSError, SyntaxError, TypeError, ValueError):
        for module, name in _imported(ast.parse(Path(file).read_bytes())):
            if name in OLD.get(module, ()) and name not in found.setdefault(module, []):
                found[module].append(name)
    if not found:
        return ""
    names, verb = sorted({name for each in found.values() for name in each}), "is an old path" if len(found) == 1 else "are old paths"
    return f"{Path(file).name}: {', '.join(found)} {verb}; write `from {HOME} import {', '.join(names)}`"


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields (module, name) of every import in the file; of a whole module each name that ports have taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.module or "", alias.name) for alias in node.names)
        if isinstance(node, ast.Import | ast.ImportFrom):
            start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            modules = [start + alias.name for alias in node.names]
            yield from ((module, name) for module in modules for name in OLD.get(module, ()))
