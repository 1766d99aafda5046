"""The config fields: their meanings, and which fields a component reads."""

import ast
import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args, get_type_hints

from reference_numpy import parameters
from reference_numpy.config import TransformerConfig

from ...judge.expectation.components import OWN, VJP, model_of
from .component_arguments import reached
from .facts import CONFIG, EXPERTS, HEADS
from .modules import read

CLASS = TransformerConfig.__name__
BASES = (CONFIG, CONFIG.replace(share_embeddings=False, tie_logits=False), HEADS, HEADS.replace(classes=0, attention_sinks="none"),
         EXPERTS, EXPERTS.replace(expert_pattern=(False,)), CONFIG.replace(norm_placement="pre"))  # fmt: skip


@dataclass(frozen=True)
class Field:
    """A field. must: its valid values; meaning: the comment after it."""

    name: str
    must: str
    meaning: str


@functools.cache
def fields() -> Mapping[str, Field]:
    """Returns every field of the config, in its order."""
    file = read("reference_numpy", "config")
    hints = get_type_hints(TransformerConfig, include_extras=True)
    found = {}
    for node in file.definitions[CLASS].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is None:
            name = node.target.id
            comment = file.lines[(node.end_lineno or node.lineno) - 1].partition("  # ")[2]
            found[name] = Field(name, ", ".join(rule.wanted for rule in get_args(hints[name])[1:]), comment)
    return found


def behind(name: str) -> tuple[str, ...]:
    """Returns the field of this name, or the fields that the property of this name reads."""
    node = read("reference_numpy", "config").definitions.get(f"{CLASS}.{name}")
    return (name,) if node is None else tuple(_read(node))


@functools.cache
def fields_of(component: str) -> tuple[Field, ...]:
    """Returns the fields on which a component depends: fields read by the code it runs, fields
    passed as arguments, and fields that determine its parameters and their shapes.
    """
    forward = component.removesuffix(VJP)
    found = {
        *(name for value in OWN[forward].arguments.values() for name in behind(value)),
        *_shaping("transformer" if forward == "initialise" else model_of(forward)),
    }
    for symbol in reached(forward):
        if symbol.module != "config":
            found |= {*_read(read(*symbol[:2]).definitions[symbol.name])}
    return tuple(field for name, field in fields().items() if name in found)


@functools.cache
def _shaping(component: str) -> frozenset[str]:
    """Returns the fields that change the names or shapes of a component's parameters."""
    before = {base: _shapes(base, component) for base in BASES}
    if not any(before.values()):  # it has no parameters
        return frozenset()
    return frozenset(name for name, base, changed in _changes() if _shapes(changed, component) not in ({}, before[base]))


@functools.cache
def _changes() -> tuple[tuple[str, TransformerConfig, TransformerConfig], ...]:
    """Returns each field with pairs of configs that differ only in that field."""
    found = []
    for base in BASES:
        for name in fields():
            value = getattr(base, name)
            others = {getattr(other, name) for other in BASES} - {value}
            for other in (not value,) if isinstance(value, bool) else (value * 2, value // 2, 0) if isinstance(value, int) else others:
                with contextlib.suppress(ValueError):  # there is no such config
                    found.append((name, base, base.replace(**{name: other})))
    return tuple(found)


def _shapes(config: TransformerConfig, component: str) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a component's parameters; empty if the config has no such component."""
    try:
        return dict(parameters.shapes(config, component))
    except ValueError:
        return {}


def _read(node: ast.AST) -> Iterator[str]:
    """Yields the config fields that a definition uses, also through properties."""
    definitions = read("reference_numpy", "config").definitions
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in ("config", "self"):
            if part.value.id == "config" and f"{CLASS}.{part.attr}" in definitions:
                yield from _read(definitions[f"{CLASS}.{part.attr}"])
            elif part.attr in fields():
                yield part.attr
