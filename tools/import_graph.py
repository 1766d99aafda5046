"""Who imports whom: the arrows between modules, and between the rooms in which they lie."""

import ast
import functools
import graphlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["HOUSE", "PACKAGES", "PORTS", "arrows", "circle", "files", "imported_packages", "imports", "reduced", "rooms", "tree_of"]

HOUSE = Path(__file__).resolve().parent.parent
PORTS = ("impl_torch", "impl_tf", "impl_jax")
PACKAGES = ("reference_numpy", *PORTS)


def files(package: str) -> list[Path]:
    """The Python files of a folder of the house, or the one of a loose module."""
    return sorted((HOUSE / package).rglob("*.py")) or [HOUSE / f"{package}.py"]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path, *, lazy: bool = True, root: Path = HOUSE) -> Iterator[tuple[str, str]]:
    """(module, name) of every import in a file of the root, by absolute names; (module, "") of a plain one.

    lazy: also the imports in functions and under TYPE_CHECKING, which do not run when the module is imported.
    """
    around = path.relative_to(root).parent.parts
    for node in ast.walk(tree_of(path)) if lazy else tree_of(path).body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = around[: len(around) + 1 - node.level] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)


def imported_packages(package: str) -> set[str]:
    """The packages that the files of a folder, or of a loose module, import, without the package in which it lies."""
    found = {module.partition(".")[0] for path in files(package) for module, _ in imports(path)}
    return found - {package.partition("/")[0]}


def arrows(folder: Path, *, lazy: bool) -> Iterator[tuple[str, str]]:
    """(module, module that it imports) within a package, by names that begin below it, which is "" itself."""
    paths = {".".join(path.relative_to(folder).with_suffix("").parts): path for path in folder.rglob("*.py")}
    modules = {f".{name}".removesuffix(".__init__").removeprefix("."): path for name, path in paths.items()}
    for name, path in sorted(modules.items()):
        for pair in imports(path, lazy=lazy, root=folder.parent):
            root, _, target = ".".join(filter(None, pair)).partition(".")
            if root == folder.name:
                yield name, next(one for one in (target, target.rpartition(".")[0], "") if one in modules)


def circle(folder: Path, *, lazy: bool) -> list[str]:
    """Modules of a package that import each other in a circle, the first one also last; empty if there is none."""
    graph: dict[str, set[str]] = {}
    for module, imported in arrows(folder, lazy=lazy):
        parts = imported.split(".")
        around = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
        graph.setdefault(module, set()).update(one for one in around if not f"{module}.".startswith(f"{one}."))
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def rooms(folder: Path, without: Sequence[str] = ()) -> dict[str, set[str]]:
    """The rooms of a package, which are its folders and its loose modules, and those that each imports from.

    without: folders below the package whose files are no part of it.
    """
    graph: dict[str, set[str]] = {}
    for module, imported in arrows(folder, lazy=True):
        one, other = (name.partition(".")[0] for name in (module, imported))
        if one and not any(f"{module}.".startswith(f"{name}.") for name in without):
            graph.setdefault(one, set()).update({other} - {one, ""})
    return graph


def _needed(graph: Mapping[str, Collection[str]], room: str) -> set[str]:
    """All that a room needs, also by way of others. The rooms must be in no circle."""
    return {one for other in graph.get(room, ()) for one in (other, *_needed(graph, other))}


def reduced(graph: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """The rooms, those that need most first, and of the rooms that each imports from those that it needs by no other way."""
    order = [*graphlib.TopologicalSorter(graph).static_order()][::-1]
    return {
        room: [one for one in order if one in graph.get(room, ()) and not any(one in _needed(graph, other) for other in graph[room])]
        for room in order
    }
