"""The frameworks' names for a component and for the functions it uses."""

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources

from ..blocks import begun, blocks, prose
from .modules import read
from .sources import Piece, Source

# abbreviations of packages
ALIASES = {"nn": "torch.nn", "F": "torch.nn.functional", "tf": "tensorflow", "jnp": "jax.numpy", "nnx": "flax.nnx"}
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "flax", "optax")


@dataclass(frozen=True)
class Stock:
    """A framework's counterpart of a component.

    difference: from the reference. defaults: of its signature, as in Python. parameters: canonical
    name -> (native name, axes). claims: assertions that verify the difference.
    """

    name: str
    difference: str
    defaults: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    claims: str = ""

    @property
    def framework(self) -> str:
        package = full_name(self.name).partition(".")[0]
        return {"torch": "torch", "tensorflow": "tf", "keras": "tf"}.get(package, "jax")


@functools.cache
def stock() -> Mapping[str, tuple[Stock, ...]]:
    """Returns the frameworks' counterparts by component."""
    found: dict[str, list[Stock]] = {}
    given: dict[str, str] = {}  # component -> statements before its claims
    text = (resources.files(__package__) / "stock.txt").read_text(encoding="utf-8")
    for component, name, fields in blocks(text):
        if not name:
            given[component] = fields["given"]
            continue
        defaults = dict(pair.split("=") for pair in fields.get("defaults", "").split())
        natives = re.findall(r"(\S+) = ([^,]+), ([^;]+)", prose(fields.get("parameters", "")))
        parameters = {canonical: (native, axes) for canonical, native, axes in natives}
        claims = begun(given.get(component, ""), fields["claims"])
        difference = prose(fields["difference"])
        found.setdefault(component, []).append(Stock(name, difference, defaults, parameters, claims))
    return {component: tuple(entries) for component, entries in found.items()}


def full_name(name: str) -> str:
    """Returns the name with its full package: `torch.nn.LayerNorm` for `nn.LayerNorm`."""
    first, dot, rest = name.partition(".")
    return ALIASES.get(first, first) + dot + rest


def used(source: Source) -> list[str]:
    """Returns the framework functions and classes that a source uses, in order."""
    found: dict[str, None] = {}
    for block in source.blocks:
        imports = read(*block.symbol[:2]).imports
        for name in (name for piece in block.pieces for name in _called(piece)):
            first = name.partition(".")[0]
            if imports.get(first, "").partition(".")[0] in FRAMEWORKS or (first == "keras" and first in imports):
                found[name] = None
    return list(found)


def _called(piece: Piece) -> Iterator[str]:
    """Yields the dotted names of calls and base classes."""
    calls = [node.func for part in piece.parts for node in ast.walk(part) if isinstance(node, ast.Call)]
    for node in (*(piece.node.bases if isinstance(piece.node, ast.ClassDef) else ()), *calls):
        if isinstance(node, ast.Attribute) and re.fullmatch(r"\w+(\.\w+)+", name := ast.unparse(node)):
            yield name
