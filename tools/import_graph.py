"""The imports between modules, and between the folders they are in."""

import ast
import functools
import graphlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

HOUSE = Path(__file__).resolve().parent.parent
PORTS = ("impl_torch", "impl_tf", "impl_jax")
PACKAGES = ("reference_numpy", *PORTS)


def files(package: str) -> list[Path]:
    """Returns the Python files of a folder, or of a single module."""
    return sorted((HOUSE / package).rglob("*.py")) or [HOUSE / f"{package}.py"]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path, *, lazy: bool = True, root: Path = HOUSE) -> Iterator[tuple[str, str]]:
    """Yields (module, name) of a file's imports, with absolute names; "" for a plain import.

    lazy: also imports in functions and under TYPE_CHECKING, which do not run when the module is
    imported.
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
    """Returns the packages imported by the files of a folder or module, except its own."""
    found = {module.partition(".")[0] for path in files(package) for module, _ in imports(path)}
    return found - {package.partition("/")[0]}


def arrows(folder: Path, *, lazy: bool) -> Iterator[tuple[str, str]]:
    """Returns (module, imported module) in a package, by relative names; "" is the package."""
    paths = {".".join(path.relative_to(folder).with_suffix("").parts): path for path in folder.rglob("*.py")}
    modules = {f".{name}".removesuffix(".__init__").removeprefix("."): path for name, path in paths.items()}
    for name, path in sorted(modules.items()):
        for pair in imports(path, lazy=lazy, root=folder.parent):
            root, _, target = ".".join(filter(None, pair)).partition(".")
            if root == folder.name:
                yield name, next(one for one in (target, target.rpartition(".")[0], "") if one in modules)


def circle(folder: Path, *, lazy: bool) -> list[str]:
    """Returns modules that import each other in a circle, the first also last; or []."""
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
    """Returns a package's folders and top-level modules, with those that each imports.

    without: folders of the package to ignore.
    """
    graph: dict[str, set[str]] = {}
    for module, imported in arrows(folder, lazy=True):
        one, other = (name.partition(".")[0] for name in (module, imported))
        if one and not any(f"{module}.".startswith(f"{name}.") for name in without):
            graph.setdefault(one, set()).update({other} - {one, ""})
    return graph


def _needed(graph: Mapping[str, Collection[str]], room: str) -> set[str]:
    """Returns a folder's direct and indirect imports. There must be no circles."""
    return {one for other in graph.get(room, ()) for one in (other, *_needed(graph, other))}


def reduced(graph: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """Returns the folders, highest first, each with its imports that are not also indirect."""
    order = [*graphlib.TopologicalSorter(graph).static_order()][::-1]
    return {
        room: [one for one in order if one in graph.get(room, ()) and not any(one in _needed(graph, other) for other in graph[room])]
        for room in order
    }
