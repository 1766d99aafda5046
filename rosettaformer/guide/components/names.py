"""What the frameworks call what a component is or uses."""

import ast
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources

from .modules import read
from .sources import Source

__all__ = ["ALIASES", "Stock", "full_name", "stock", "used"]

# how names of the frameworks are written here
ALIASES = {"nn": "torch.nn", "F": "torch.nn.functional", "tf": "tensorflow", "jnp": "jax.numpy", "nnx": "flax.nnx"}
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "flax", "optax")


@dataclass(frozen=True)
class Stock:
    """What a framework has for a component.

    difference: from the reference. defaults: of its signature, as Python writes them. parameters: canonical name -> native name, axes.
    """

    name: str
    framework: str
    difference: str
    defaults: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@functools.cache
def stock() -> Mapping[str, tuple[Stock, ...]]:
    """What the frameworks have, by component."""
    tables = tomllib.loads((resources.files(__package__) / "stock.toml").read_text(encoding="utf-8"))
    return {component: tuple(Stock(**entry) for entry in entries) for component, entries in tables.items()}


def full_name(name: str) -> str:
    """The name with its package in full: `torch.nn.LayerNorm` of `nn.LayerNorm`."""
    first, dot, rest = name.partition(".")
    return ALIASES.get(first, first) + dot + rest


def used(source: Source) -> list[str]:
    """The functions and classes of a framework that a source calls or inherits from, in their order."""
    found: dict[str, None] = {}
    for block in source.blocks:
        imports = read(*block.symbol[:2]).imports
        for node in (node for piece in block.pieces for part in piece.parts for node in ast.walk(part)):
            called = node.func if isinstance(node, ast.Call) else node
            chain = ast.unparse(called) if isinstance(called, ast.Attribute) else ""
            first, _, rest = chain.partition(".")
            origin = imports.get(first, "").replace("keras.src", "keras")
            if (isinstance(node, ast.Call) or _is_base(block, node)) and rest.replace(".", "").isidentifier():
                if origin.partition(".")[0] in FRAMEWORKS or (first == "keras" and origin):
                    found[chain] = None
    return list(found)


def _is_base(block: object, node: ast.AST) -> bool:
    pieces = getattr(block, "pieces", ())
    return any(isinstance(piece.node, ast.ClassDef) and node in piece.node.bases for piece in pieces)
