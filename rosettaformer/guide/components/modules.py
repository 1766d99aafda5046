"""The files of the four packages as syntax trees: definitions, imports and references."""

import ast
import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...common.backends import BACKENDS
from ...judge.expectation.components import OWN, VJP

PACKAGES = tuple(sorted(BACKENDS.values(), key=lambda name: name != BACKENDS["numpy"]))  # the reference first
JUDGE = "rosettaformer.judge.expectation"
Definition = ast.FunctionDef | ast.ClassDef


class Symbol(NamedTuple):
    """A definition: package, module (`kernels.attention`), and name, dotted for a method."""

    package: str
    module: str
    name: str

    @property
    def path(self) -> str:
        """The file, such as `impl_torch/kernels/attention.py`."""
        return f"{self.package}.{self.module}".replace(".", "/") + ".py"


# counterparts in a port's file of another name: component -> package -> (module, name), the main one first
ELSEWHERE: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    "initialise": {
        "impl_torch": (("port", "initialise"), ("projection", "initialise")),
        "impl_tf": (("port", "_initialise"), ("projection", "xavier_uniform"), ("projection", "Projection")),
        "impl_jax": (("port", "_initialise"), ("projection", "Projection")),
    },
    "random_dropout": {
        "reference_numpy": (("statistics", "random_dropout"),),
        **dict.fromkeys(PACKAGES[1:], (("dropout", "Dropout"),)),
    },
}


@dataclass(frozen=True, eq=False)
class File:
    """A module: text, definitions by name, imports (local name -> origin), and `__all__`."""

    package: str
    module: str
    text: str
    lines: tuple[str, ...]
    docstring: str
    definitions: dict[str, Definition]
    imports: dict[str, str]
    public: tuple[str, ...]

    def bases(self, name: str) -> Iterator[str]:
        """Yields a class's base classes in this file, nearest first."""
        node = self.definitions[name]
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            if isinstance(base, ast.Name) and base.id in self.definitions:
                yield base.id
                yield from self.bases(base.id)

    def references(self, node: ast.AST, owner: str = "") -> Iterator[Symbol]:
        """Yields the definitions that a statement names, in order. owner: its class."""
        for part in _in_order(node):
            if isinstance(part, ast.Name) and part.id in self.definitions:
                yield Symbol(self.package, self.module, part.id)
            elif isinstance(part, ast.Name):
                yield from self._imported(self.imports.get(part.id, ""))
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                if part.value.id in ("self", "cls") and owner:
                    classes = (owner, *self.bases(owner))
                    found = next((f"{name}.{part.attr}" for name in classes if f"{name}.{part.attr}" in self.definitions), "")
                    if found:
                        yield Symbol(self.package, self.module, found)
                else:
                    yield from self._imported(f"{self.imports.get(part.value.id, '')}.{part.attr}")

    def _imported(self, origin: str) -> Iterator[Symbol]:
        module, _, name = origin.removeprefix(f"{self.package}.").rpartition(".")
        if origin.startswith(f"{self.package}.") and module:
            try:
                other = read(self.package, module)
            except ValueError:
                return
            if name in other.definitions:
                yield Symbol(self.package, module, name)


@functools.cache
def read(package: str, module: str) -> File:
    """Returns a module of a package. Raises ValueError if there is none."""
    spec = importlib.util.find_spec(package)
    locations = spec.submodule_search_locations if spec else None
    path = Path(locations[0] if locations else package, *module.split(".")).with_suffix(".py")
    if not path.is_file():
        raise ValueError(f"{package} must have a module {module}; there is no file {path}")
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    definitions: dict[str, Definition] = {}
    for node in tree.body:
        if isinstance(node, Definition):
            definitions[node.name] = node
        if isinstance(node, ast.ClassDef):
            definitions |= {f"{node.name}.{part.name}": part for part in node.body if isinstance(part, Definition)}
    lines, docstring = tuple(text.splitlines()), ast.get_docstring(tree) or ""
    return File(package, module, text, lines, docstring, definitions, _imports(tree, package, module), _public(tree))


@functools.cache
def main_of(component: str, package: str) -> tuple[Symbol, ...]:
    """Returns the function, class or method that defines a component in a package; it may define
    several components.

    Raises ValueError if there is none.
    """
    own = OWN[component]
    if places := ELSEWHERE.get(component, {}).get(package):
        return tuple(Symbol(JUDGE if where == "statistics" else package, where, name) for where, name in places)
    file = read(package, own.module)
    wanted = [name for name in (component, own.class_name) if name in file.public]
    for name in (*wanted, *(name for name in file.definitions if name.endswith(f".{component}"))):
        if name in file.definitions:
            return (Symbol(package, own.module, name),)
    raise ValueError(f"{package}/{own.module}.py must define {component}")


@functools.cache
def components_by_symbol(package: str) -> dict[Symbol, str]:
    """Returns definition -> component."""
    found = {}
    for component in OWN:
        if component.endswith(VJP) and package != PACKAGES[0]:
            continue
        if component not in ELSEWHERE:
            found[main_of(component, package)[0]] = component
    return found


def _public(tree: ast.Module) -> tuple[str, ...]:
    assigned = (node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    return tuple(name for node in assigned for name in ast.literal_eval(node.value))


def _imports(tree: ast.Module, package: str, module: str) -> dict[str, str]:
    """Returns local name -> dotted origin."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else alias.name.partition(".")[0]
                      for alias in node.names}  # fmt: skip
        elif isinstance(node, ast.ImportFrom):
            around = [package, *module.split(".")]
            start = ".".join(around[: len(around) - node.level]) if node.level else ""
            origin = ".".join(filter(None, (start, node.module)))
            found |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in node.names}
    return found


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the node and its descendants in source order, without type annotations."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from _in_order(part)
