"""Makes the rows of a port's `weights`, in a table for each component that is the same wherever it occurs."""

from collections.abc import Iterator, Sequence
from typing import Any

from .parts import Part
from .vocabulary import within


def row_text(row: Sequence[str]) -> str:
    return "(" + ", ".join(f'"{text}"' for text in row) + ")"


def tables_of(root: Part) -> dict[str, list[tuple[str, ...]]]:
    """Returns the rows of each component.

    A part that is a sub-module of its own, and the same wherever it occurs, has a table; the rows of any other are in the table around it.
    """
    own = _own_tables(root)
    tables: dict[str, list[tuple[str, ...]]] = {root.component: []}
    _fill(root, root, "", own, tables)
    return {component: list(dict.fromkeys(rows)) for component, rows in tables.items() if rows}


def _own_tables(root: Part) -> set[str]:
    """Returns the components that are the same wherever they occur, each in a sub-module of its own."""
    found: dict[str, set[tuple[Any, ...]]] = {}
    for around, part in _all(root):
        inside: tuple[tuple[str, ...], ...] = tuple(sorted((row.name, row.native, row.axes[0]) for row in part.rows))
        inside += tuple((child.path, within(child.native, part.native)) for child in part.parts if child.component != "layer_norm")
        apart = part.native != around.native
        found.setdefault(part.component, set()).add(inside if apart else ("in", around.component, inside))
    return {component for component, shapes in found.items() if len(shapes) == 1 and not any(shape[:1] == ("in",) for shape in shapes)}


def _all(part: Part) -> Iterator[tuple[Part, Part]]:
    for child in part.parts:
        yield part, child
        yield from _all(child)


def _fill(part: Part, holder: Part, prefix: str, own: set[str], tables: dict[str, list[tuple[str, ...]]]) -> None:
    """Adds the rows of a part to the table of its holder; prefix: the part's canonical path inside the holder."""
    base = within(part.native, holder.native) if part is not holder else ""
    for row in part.rows:
        tables[holder.component].append((prefix + row.name, ".".join(filter(None, (base, row.native))), row.axes[0]))
    tables[holder.component] += _stacked(part, holder, prefix, own)
    for child in part.parts:
        path = prefix + child.path
        if child.component in own:
            relative = within(child.native, holder.native)
            if not child.path.startswith("layers.") and relative != path:
                tables[holder.component].append((path, relative))
            if child.component not in tables:
                tables[child.component] = []
                _fill(child, child, "", own, tables)
        else:
            _fill(child, holder, f"{path}.", own, tables)


def _stacked(part: Part, holder: Part, prefix: str, own: set[str]) -> Iterator[tuple[str, ...]]:
    """Yields the rows that locate the layers of a stack: one for all if they are numbered, otherwise one each."""
    layers = [child for child in part.parts if child.path.startswith("layers.") and child.component in own]
    natives = [within(child.native, holder.native) for child in layers]
    common = {native.rpartition(".")[0] for native in natives}
    numbered = all(native.rpartition(".")[2] == str(index) for index, native in enumerate(natives))
    if layers and numbered and len(common) == 1:
        place = common.pop()
        if place != f"{prefix}layers":
            yield f"{prefix}layers", place
        return
    for child, native in zip(layers, natives, strict=True):
        yield prefix + child.path, native
