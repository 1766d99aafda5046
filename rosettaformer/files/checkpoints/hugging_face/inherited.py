"""Models of an unknown model_type whose code, stored in their folder, inherits from a class of a family."""

import ast
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .entries import config_of, unadvised
from .families import FAMILIES


def reason(folder: Path, entries: Mapping[str, Any]) -> str:
    """Explains from which known class a model's class inherits, and which entries of config.json
    differ; empty if from none. The code is parsed, not run.
    """
    bases = _bases(folder)
    for own in _named(entries):
        if own in bases and (known := next(_known(own, bases), "")):
            family = next(family for family in FAMILIES.values() if known in family.classes)
            _, problems = config_of(family, {name: value for name, value in entries.items() if name != "auto_map"}, family.classes[known])
            differ = f"these entries differ: {'; '.join(map(unadvised, problems))}" if problems else "no entry differs"
            same = f"where it computes the same, set model_type to {family.model_type} in config.json"
            return f": its class {own} inherits from {known}, and {differ}; {same}"
    return ""


def _named(entries: Mapping[str, Any]) -> Iterator[str]:
    """Yields the classes that config.json names."""
    classes, mapped = entries.get("architectures"), entries.get("auto_map")
    yield from (name for name in classes if isinstance(name, str)) if isinstance(classes, list) else ()
    yield from (name.rpartition(".")[2] for name in mapped.values() if isinstance(name, str)) if isinstance(mapped, Mapping) else ()


def _bases(folder: Path) -> dict[str, list[str]]:
    """Returns the base classes of every class in the folder's code, by name."""
    found: dict[str, list[str]] = {}
    for file in sorted(folder.glob("*.py")):
        with contextlib.suppress(SyntaxError, ValueError, OSError):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.ClassDef):
                    found[node.name] = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    return found


def _known(name: str, bases: Mapping[str, list[str]], seen: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields the classes of families among a class's ancestors."""
    for base in bases.get(name, ()):
        if base not in bases and any(base in family.classes for family in FAMILIES.values()):
            yield base
        elif base not in seen:
            yield from _known(base, bases, (*seen, base))
