"""Finds variables in Keras and NNX modules by their path of attributes, keys and indices."""

from collections.abc import Iterator, Mapping
from typing import Any

from . import framework_of


def at(root: Any, path: str) -> Any:
    """Returns the value at a dotted path of attributes, keys and indices; None if there is none."""
    node = root
    for part in filter(None, path.split(".")):
        try:
            node = node[int(part)] if part.isdigit() else getattr(node, part)
        except (AttributeError, IndexError, KeyError, TypeError):
            return None
    return node


def variables(node: Any) -> Iterator[tuple[str, Any]]:
    """Yields the trainable variables of a Keras layer or NNX module once, by path, in order."""
    yield from _variables(node, "", {})


def parts(root: Any) -> Iterator[Any]:
    """Yields the module and its parts: modules, and lists and mappings of modules."""
    queue, seen = [root], dict[int, Any]()
    while queue:
        node = queue.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        yield node
        if hasattr(node, "__dict__") or isinstance(node, (list, tuple, Mapping)):
            queue += [value for _, value in _members(node) if _is_part(value)]


def _variables(node: Any, prefix: str, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """Like `variables`. seen: visited objects, kept so that their ids stay unique."""
    for name, value in _members(node):
        if id(value) in seen:
            continue
        if _is_variable(value):
            seen[id(value)] = value
            yield prefix + name, value
        elif _is_part(value):
            seen[id(value)] = value
            yield from _variables(value, f"{prefix}{name}.", seen)


def _members(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, (list, tuple)) or type(node).__name__ == "List":
        yield from ((str(index), value) for index, value in enumerate(node))
        return
    if isinstance(node, Mapping):
        yield from ((str(key), value) for key, value in node.items())
        return
    if type(node).__name__ in ("Sequential", "Functional"):
        yield "layers", list(node.layers)
        return
    for name, value in vars(node).items():
        public = name.lstrip("_")
        if not name.startswith("_"):
            yield name, value
        elif getattr(type(node), public, None) is not None and getattr(node, public, None) is value:
            yield public, value  # behind a property, like the kernel of a Keras layer


def _is_variable(value: Any) -> bool:
    names = {cls.__name__ for cls in type(value).__mro__}
    if "Param" in names:
        return True
    framework = type(value).__module__.startswith(("keras", "tensorflow"))
    return framework and "Variable" in "".join(names) and getattr(value, "trainable", False)


def _is_part(value: Any) -> bool:
    if isinstance(value, (list, tuple, Mapping)) or type(value).__name__ == "List":
        return True
    return framework_of(value) in ("keras", "nnx") and hasattr(value, "__dict__")
