"""Creates the pages of one direction: an overview, and a page for each section of topics."""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
OVERVIEW = (("Different defaults", "#defaults"), ("Worked example", "#example"), ("Weight layouts", "#layouts"))  # for the search
# framework -> the models that tutorials port to it from an empty file, each with its page
TUTORIALS = {
    "pytorch": {"GPT-2": "port-pytorch", "Llama 3": "port-llama"},
    "keras": {"GPT-2": "port-keras"},
    "flax": {"GPT-2": "port-flax", "Llama 3": "port-llama-flax"},
}
FROM_KERAS = {"BERT": "port-bert"}  # to PyTorch
SHOWN_STEPS = (1, 2, 5, 10, 20)  # whose losses are shown


def pages(one: str, other: str, measured: Measured) -> Iterator[Page]:
    """Yields the overview of a direction and a page for each section of topics."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows():  # what both lack is written in both: its code is there
        groups.setdefault(row.section, []).append(_entry(row, one, other, measured))
    shared = {
        "one": one,
        "other": other,
        "frameworks": FRAMEWORKS,
        "classes": CLASSES,
        "topics": SECTIONS,
        "groups": groups,
        "paths": {name: path(one, other, name) for name in ("", *groups)},
        "decided": _decided(),
        "tutorials": TUTORIALS[other] | (FROM_KERAS if (one, other) == ("keras", "pytorch") else {}),
    }
    way = f"{FRAMEWORKS[one]} to {FRAMEWORKS[other]}"
    overview = shared | _overview(one, other, [*itertools.chain(*groups.values())], measured)
    summary = f"{sum(overview['counts'].values())} topics, {len(overview['differing'])} of which have a different default or behavior"
    yield Page(path(one, other), f"From {way}", "translation.html.jinja", overview, summary, OVERVIEW)
    imports = [_block("\n".join(IMPORTS[name]), "rosettaformer/guide/translation/snippets.py", FRAMEWORKS[name]) for name in (one, other)]
    for section, entries in groups.items():
        values = {
            "section": section,
            "entries": entries,
            "own": [(entry["row"].id, entry["row"].title) for entry in entries],
            "counts": counts(entries),
            "imports": imports,
        }
        names = ((SECTIONS[section], ""), *dict.fromkeys(name for entry in entries for name in _names(entry)))
        heading = f"{SECTIONS[section]}, from {way}"
        yield Page(path(one, other, section), heading, "translation_topics.html.jinja", shared | values, names=names)


def path(one: str, other: str, section: str = "") -> str:
    """Returns the path of a direction's overview or of one of its section pages."""
    return f"translate/{'-'.join(filter(None, (f'{one}-to-{other}', section)))}.html"


def counts(entries: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Counts the topics of each class."""
    found = Counter(entry["relation"] for entry in entries)
    return {name: found[name] for name in CLASSES}


def show(value: Any) -> str:
    """Formats a value: numbers to six digits, lists in brackets."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value:.6g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(show, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {show(item)}" for key, item in value.items()) + "}"
    return str(value)


def _overview(one: str, other: str, entries: Sequence[Mapping[str, Any]], measured: Measured) -> dict[str, Any]:
    """Returns the overview's contents: differing topics, the worked example, weight layouts."""
    differing = [entry for entry in entries if entry["relation"] in ("meaning", "default")]
    return {
        "counts": counts(entries),
        "differing": sorted(differing, key=lambda entry: entry["relation"] != "meaning"),
        "layouts": list(_layouts(one, other, measured.layouts)),
        "example": [(text, [_part(name, part) for name in (one, other)]) for part, text in example.PARTS.items()],
        "losses": [(step, *(measured.examples[name]["losses"][step - 1] for name in (one, other))) for step in SHOWN_STEPS],
    }


def _entry(row: Row, one: str, other: str, measured: Measured) -> dict[str, Any]:
    return {
        "row": row,
        "relation": relation(row, one, other, measured.values),
        "given": _block(row.given.strip("\n"), row.origin, "what is given") if row.given else None,
        "cells": [_cell(row, framework, measured.values[row.id].get(framework, {})) for framework in (one, other)],
    }


def _names(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields a topic's search terms, its title first; results on several pages share the title."""
    for name in (entry["row"].title, *(name for cell in entry["cells"] for name in cell["cell"].names)):
        yield name, f"#{entry['row'].id}"


def _cell(row: Row, framework: str, values: Mapping[str, Any]) -> dict[str, Any]:
    cell = row.cells[framework]
    return {
        "framework": FRAMEWORKS[framework],
        "cell": cell,
        "code": _block(cell.code, row.origin, FRAMEWORKS[framework]) if cell.code else None,
        "value": show(values.get("code")),
        "measure": _block(cell.measure, row.origin, FRAMEWORKS[framework]) if cell.measure else None,
        "measured": show(values["measure"]) if cell.measure else "",
    }


def _part(framework: str, part: str) -> Any:
    code = example.parts(framework).get(part)
    return _block(code.text, code.origin, FRAMEWORKS[framework]) if code else None


@functools.cache
def _decided() -> Mapping[str, str]:
    """Returns decision -> the component whose page shows it, the first one it governs."""
    return {id: component for component in reversed(ORDER) for id in governing(component)}


@functools.cache
def _block(text: str, origin: str, label: str) -> Any:
    return highlighted(Code(text, origin, label=label))


def _layouts(one: str, other: str, tables: Mapping[str, Sequence[Sequence[str]]]) -> Iterator[dict[str, Any]]:
    """Yields the components' parameters as the two ports store them."""
    config = preset("tiny", attention_bias=True, output_bias=True)
    for component in COMPONENTS:
        for name, axes in parameters.axes(config, component).items():
            native = [layout.native(name, axes, tuple(tuple(row) for row in tables[framework])) for framework in (one, other)]  # type: ignore[misc]
            yield {"component": component, "name": name, "axes": axes, "native": native, "same": native[0][1] == native[1][1]}
