"""Builds a port's `weights`: a table for each component that looks the same everywhere."""

from collections.abc import Iterator
from typing import Any

from .matching import Part
from .vocabulary import within

Tables = dict[str, list[tuple[str, ...]]]


def tables_of(root: Part) -> Tables:
    """Returns the rows of each component.

    A part with its own submodule that looks the same everywhere has its own table. The rows of
    other parts are in the enclosing table.
    """
    tables: Tables = {root.component: []}
    _fill(root, root, "", _own_tables(root), tables)
    return {component: list(dict.fromkeys(rows)) for component, rows in tables.items() if rows}


def _own_tables(root: Part) -> set[str]:
    """Returns the components that look the same everywhere, each in its own submodule."""
    found: dict[str, set[tuple[Any, ...]]] = {}
    for around in root.within():
        for part in around.parts:
            inside: tuple[tuple[str, ...], ...] = tuple(sorted((row.name, row.native, row.axes[0]) for row in part.rows))
            inside += tuple((child.path, within(child.native, part.native)) for child in part.parts if child.component != "layer_norm")
            apart = part.native != around.native
            found.setdefault(part.component, set()).add(inside if apart else ("in", around.component, inside))
    return {component for component, shapes in found.items() if len(shapes) == 1 and not any(shape[:1] == ("in",) for shape in shapes)}


def _fill(part: Part, holder: Part, prefix: str, own: set[str], tables: Tables) -> None:
    """Adds a part's rows to its holder's table. prefix: its canonical path in the holder."""
    base = within(part.native, holder.native) if part is not holder else ""
    rows = tables[holder.component]
    rows += [(prefix + row.name, ".".join(filter(None, (base, row.native))), row.axes[0]) for row in part.rows]
    rows += _stacked(part, holder, prefix, own)
    for child in part.parts:
        path, relative = prefix + child.path, within(child.native, holder.native)
        if child.component not in own:
            _fill(child, holder, f"{path}.", own, tables)
            continue
        if not child.path.startswith("layers.") and relative != path:
            rows.append((path, relative))
        if child.component not in tables:
            tables[child.component] = []
            _fill(child, child, "", own, tables)


def _stacked(part: Part, holder: Part, prefix: str, own: set[str]) -> Iterator[tuple[str, ...]]:
    """Yields the rows that locate a stack's layers: one if numbered, otherwise one each."""
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
