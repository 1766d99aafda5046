"""Makes the page of one direction."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reference_numpy import layout, parameters, preset

from ..code import Code, highlighted
from ..components import ORDER
from ..components.decisions import governing
from ..site import Page
from . import example
from .classes import CLASSES, relation
from .measurement import Measured
from .snippets import IMPORTS
from .table import FRAMEWORKS, SECTIONS, Row, rows

COMPONENTS = ("embedding", "position_embedding", "layer_norm", "multi_head_attention", "feed_forward", "logits", "pooler", "classifier")
SHOWN_STEPS = (1, 2, 5, 10, 20)  # whose losses are shown


def page(one: str, other: str, measured: Measured) -> Page:
    """Returns the page from one framework to the other."""
    entries = [_entry(row, one, other, measured) for row in rows() if row.cells[one].names or row.cells[other].names]
    differing = [entry for entry in entries if entry["relation"] in ("meaning", "default")]
    title = f"From {FRAMEWORKS[one]} to {FRAMEWORKS[other]}"
    values = {
        "one": one,
        "other": other,
        "frameworks": FRAMEWORKS,
        "classes": CLASSES,
        "counts": {name: sum(entry["relation"] == name for entry in entries) for name in CLASSES},
        "groups": [(name, text, [entry for entry in entries if entry["row"].section == name]) for name, text in SECTIONS.items()],
        "differing": sorted(differing, key=lambda entry: entry["relation"] != "meaning"),
        "imports": [_block("\n".join(IMPORTS[name]), "rosettaformer/guide/translation/snippets.py") for name in (one, other)],
        "layouts": list(_layouts(one, other, measured.layouts)),
        "example": [(text, [_part(name, part) for name in (one, other)]) for part, text in example.PARTS.items()],
        "decided": _decided(),
        "losses": [(step, *(measured.examples[name]["losses"][step - 1] for name in (one, other))) for step in SHOWN_STEPS],
    }
    # the title of a topic first, by which the search names its results on several of these pages
    names = {
        (name, f"#{entry['row'].id}"): None
        for entry in entries
        for name in (entry["row"].title, *(name for cell in entry["cells"] for name in cell["cell"].names))
    }
    summary = f"{len(entries)} topics, {len(differing)} of which do something else when nothing is said"
    return Page(f"translate/{one}-to-{other}.html", title, "translation.html.jinja", values, summary, tuple(names))


def show(value: Any) -> str:
    """Returns a value as the pages show it: a number to six digits, lists in brackets."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value:.6g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(show, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {show(item)}" for key, item in value.items()) + "}"
    return str(value)


def _entry(row: Row, one: str, other: str, measured: Measured) -> dict[str, Any]:
    return {
        "row": row,
        "relation": relation(row, one, other, measured.values),
        "given": _block(row.given.strip("\n"), row.origin) if row.given else None,
        "cells": [_cell(row, framework, measured.values[row.id].get(framework, {})) for framework in (one, other)],
    }


def _cell(row: Row, framework: str, values: Mapping[str, Any]) -> dict[str, Any]:
    cell = row.cells[framework]
    return {
        "framework": FRAMEWORKS[framework],
        "cell": cell,
        "code": _block(cell.code, row.origin) if cell.code else None,
        "value": show(values.get("code")),
        "measure": _block(cell.measure, row.origin) if cell.measure else None,
        "measured": show(values["measure"]) if cell.measure else "",
    }


def _part(framework: str, part: str) -> Any:
    code = example.parts(framework).get(part)
    return _block(code.text, code.origin) if code else None


@functools.cache
def _decided() -> Mapping[str, str]:
    """Returns decision -> the component whose page shows it: the first that it governs."""
    return {id: component for component in reversed(ORDER) for id in governing(component)}


@functools.cache
def _block(text: str, origin: str) -> Any:
    return highlighted(Code(text, origin))


def _layouts(one: str, other: str, tables: Mapping[str, Sequence[Sequence[str]]]) -> Iterator[dict[str, Any]]:
    """Yields the parameters of the components as the two ports hold them."""
    config = preset("tiny", attention_bias=True, output_bias=True)
    for component in COMPONENTS:
        for name, axes in parameters.axes(config, component).items():
            native = [layout.native(name, axes, tuple(tuple(row) for row in tables[framework])) for framework in (one, other)]  # type: ignore[misc]
            yield {"component": component, "name": name, "axes": axes, "native": native, "same": native[0][1] == native[1][1]}
