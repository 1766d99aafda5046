"""`rosettaformer explain`: the list of known bugs, and the page of each."""

import json
import math
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table

from reference_numpy.suggestions import nearest

from ..common.outputs import versioned
from ..guide.planted import planted
from ..judge.catalogue import Defect, all_defects
from ..judge.catalogue.effect import Effect, effect
from ..judge.catalogue.sharded import Fault, all_faults
from ..judge.expectation import tolerance
from ..judge.expectation.components import COMPONENTS
from ..judge.suite import all_cases
from . import completion, words
from .options import Grouped, examples

SHOWN = 8
FRAMEWORKS = {"torch": "PyTorch", "tf": "TensorFlow, Keras", "jax": "JAX, Flax"}


@click.command(cls=Grouped, epilog=examples("explain", "explain NRM2"))
@click.argument("defect_id", metavar="[ID]", required=False, shell_complete=completion.words(completion.known_bugs))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def explain(defect_id: str | None, as_json: bool) -> None:
    """Explain a known bug and measure its error.

    Shows its symptoms, broken and correct code, the fix in each framework, and its error on the
    cases that catch it. Without ID, lists all known bugs.
    """
    defects, faults = all_defects(), all_faults()
    if defect_id is None:
        components = list(COMPONENTS)
        rows = sorted(defects.values(), key=lambda defect: components.index(defect.component))
        _print_json({"defects": [_row(defect) for defect in rows]}) if as_json else _print_tables(rows, list(faults.values()))
        return
    if defect_id.upper() in faults:
        fault = faults[defect_id.upper()]
        _print_json(_words(fault)) if as_json else _print_fault(fault)
        return
    if defect_id.upper() not in defects:
        hint = nearest(defect_id, [*defects, *faults]) or "; `rosettaformer list defects` shows the ids"
        raise ValueError(f"ID must be the id of a known bug; got {defect_id!r}{hint}")
    defect = defects[defect_id.upper()]
    effects = _effects(defect)
    if as_json:
        _print_json(_page(defect, effects))
    else:
        _print_page(defect, effects)


def _effects(defect: Defect) -> list[Effect]:
    """Returns the effect of the bug on each case that catches it, largest first."""
    claiming = [case.at(dtype) for case in all_cases(grad=True) if defect.id in case.catches for dtype in defect.dtypes]
    return sorted((effect(defect, case, tolerance.expect(case)) for case in claiming), key=lambda one: -one.times)


def _row(defect: Defect) -> dict[str, Any]:
    return {"id": defect.id, "component": defect.component, "title": defect.title, "unobservable": defect.unobservable}


def _page(defect: Defect, effects: list[Effect]) -> dict[str, Any]:
    page: dict[str, Any] = {"what": defect.what, "variants": list(defect.variants), "shows": defect.shows, "fix": defect.fix}
    page |= {"code": [vars(edit) for edit in planted().get(defect.id, ())]}
    page |= {"elsewhere": defect.elsewhere, "evidence": defect.evidence, "claimed": len(effects)}
    rows = [
        {name: None if value == math.inf else value for name, value in vars(one).items()}  # JSON has no infinity
        for one in effects[:SHOWN]
    ]
    return _row(defect) | page | {"effects": rows}


def _print_json(fields: dict[str, Any]) -> None:
    click.echo(json.dumps(versioned("explain", fields), allow_nan=False, indent=1))


def _words(fault: Fault) -> dict[str, Any]:
    words = {"id": fault.id, "title": fault.title, "what": fault.what, "variants": list(fault.variants), "shows": fault.shows}
    return words | {"fix": fault.fix, "evidence": fault.evidence}


def _print_tables(defects: list[Defect], faults: list[Fault]) -> None:
    table = Table("id", "component", "title", title=words.known_bugs(len(defects)), title_justify="left")
    for defect in defects:
        table.add_row(defect.id, defect.component, defect.title + (" (unobservable)" if defect.unobservable else ""))
    Console(markup=False).print(table)
    on_devices = Table("id", "title", title=words.known_bugs(len(faults), " of distributed ports"), title_justify="left")
    for fault in faults:
        on_devices.add_row(fault.id, fault.title)
    Console(markup=False).print(on_devices)


def _print_fault(fault: Fault) -> None:
    sections = {"Description": fault.what}
    sections |= {"Variants": "\n  ".join(fault.variants)} if fault.variants else {}
    sections |= {"Symptoms": fault.shows}
    sections |= {f"Fix in {FRAMEWORKS[framework]}": text for framework, text in fault.fix.items()}
    _print_sections(Console(highlight=False, markup=False), f"{fault.id}: {fault.title}", sections | {"Evidence": fault.evidence})


def _print_page(defect: Defect, effects: list[Effect]) -> None:
    console = Console(highlight=False, markup=False)
    sections = {"Component": defect.component, "Description": defect.what}
    sections |= {"Variants": "\n  ".join(defect.variants)} if defect.variants else {}
    sections |= {"Symptoms": defect.shows}
    sections |= _code(defect.id)
    sections |= {f"Fix in {name}": defect.fix[framework] for framework, name in FRAMEWORKS.items()}
    sections |= {"If your code already does this": defect.elsewhere} if defect.elsewhere else {}
    sections |= {"Evidence": defect.evidence}
    if defect.unobservable:
        sections["Unobservable"] = defect.unobservable
    _print_sections(console, f"{defect.id}: {defect.title}", sections)
    if effects:
        console.print("\n" + words.effects(len(effects), SHOWN), style="bold", soft_wrap=True)
        console.print(_effects_table(effects[:SHOWN]))


def _code(id_: str) -> dict[str, str]:
    """Returns the section with broken and correct code, if the guide's plain port has the bug."""
    lines: list[str] = []
    for edit in planted().get(id_, ()):
        lines.append(f"in {edit.function}:")
        lines += [f"- {line}" for line in edit.wrong.splitlines()]
        lines += [f"+ {line}" for line in edit.right.splitlines()]
    return {"Broken (-) and correct (+) in plain PyTorch": "\n  ".join(lines)} if lines else {}


def _print_sections(console: Console, title: str, sections: dict[str, str]) -> None:
    console.print(title, style="bold", soft_wrap=True)
    for heading, text in sections.items():
        console.print(f"\n{heading}", style="bold")
        console.print(f"  {text}", soft_wrap=True)


def _effects_table(effects: list[Effect]) -> Table:
    table = Table(*(Column(name, overflow="fold") for name in ("case", "dtype", "error", "allowed", "times")))
    for one in effects:
        allowed = f"{one.allowed:.3g}" if one.allowed else "none"
        size = (f"{one.error:.3g}", allowed, f"{one.times:.3g}") if not one.message else ("-", allowed, one.message)
        table.add_row(one.case, one.dtype, *size)
    return table
