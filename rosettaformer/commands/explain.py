"""`rosettaformer explain`: the catalogue of defects, and the page of one."""

import json
import math
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table

from reference_numpy.suggestions import nearest

from ..conformance.cases import all_cases
from ..conformance.catalogue import Defect, all_defects
from ..conformance.catalogue.effect import Effect, effect
from ..conformance.reference import tolerance
from ..conformance.reference.components import COMPONENTS

SHOWN = 8
FRAMEWORKS = {"torch": "PyTorch", "tf": "TensorFlow, Keras", "jax": "JAX, Flax"}


@click.command()
@click.argument("defect_id", metavar="[ID]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(defect_id: str | None, as_json: bool) -> None:
    """Explain the defect ID of the catalogue: what it is, how it shows, how to fix it, and, measured now, how large its error is.

    Without ID, list the catalogue.
    """
    defects = all_defects()
    if defect_id is None:
        components = list(COMPONENTS)
        rows = sorted(defects.values(), key=lambda defect: components.index(defect.component))
        _print_json([_row(defect) for defect in rows]) if as_json else _print_table(rows)
        return
    if defect_id.upper() not in defects:
        hint = nearest(defect_id, defects) or " (rosettaformer list defects shows them)"
        raise ValueError(f"ID must be one of the catalogue's; got {defect_id!r}{hint}")
    defect = defects[defect_id.upper()]
    effects = _effects(defect)
    if as_json:
        _print_json(_page(defect, effects))
    else:
        _print_page(defect, effects)


def _effects(defect: Defect) -> list[Effect]:
    """Returns the effect of the defect on the cases that claim it, the worst first."""
    claiming = [case.at(dtype) for case in all_cases(grad=True) if defect.id in case.catches for dtype in defect.dtypes]
    return sorted((effect(defect, case, tolerance.expect(case)) for case in claiming), key=lambda one: -one.times)


def _row(defect: Defect) -> dict[str, Any]:
    return {"id": defect.id, "component": defect.component, "title": defect.title, "unobservable": defect.unobservable}


def _page(defect: Defect, effects: list[Effect]) -> dict[str, Any]:
    page: dict[str, Any] = {"what": defect.what, "variants": list(defect.variants), "shows": defect.shows, "fix": defect.fix}
    page |= {"elsewhere": defect.elsewhere, "evidence": defect.evidence, "claimed": len(effects)}
    rows = [
        {name: None if value == math.inf else value for name, value in vars(one).items()}  # JSON has no infinity
        for one in effects[:SHOWN]
    ]
    return _row(defect) | page | {"effects": rows}


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, allow_nan=False, indent=1))


def _print_table(defects: list[Defect]) -> None:
    table = Table("id", "component", "title", title=f"{len(defects)} defects", title_justify="left")
    for defect in defects:
        table.add_row(defect.id, defect.component, defect.title + (" (unobservable)" if defect.unobservable else ""))
    Console(markup=False).print(table)


def _print_page(defect: Defect, effects: list[Effect]) -> None:
    console = Console(highlight=False, markup=False)
    console.print(f"{defect.id}: {defect.title}", style="bold", soft_wrap=True)
    sections = {"Component": defect.component, "What": defect.what}
    sections |= {"Also": "\n  ".join(defect.variants)} if defect.variants else {}
    sections |= {"How it shows": defect.shows}
    sections |= {f"Fix in {name}": defect.fix[framework] for framework, name in FRAMEWORKS.items()}
    sections |= {"Where the code is so already": defect.elsewhere} if defect.elsewhere else {}
    sections |= {"Evidence": defect.evidence}
    if defect.unobservable:
        sections["Unobservable"] = defect.unobservable
    for heading, text in sections.items():
        console.print(f"\n{heading}", style="bold")
        console.print(f"  {text}", soft_wrap=True)
    if effects:
        count = f"{len(effects)} runs" if len(effects) <= SHOWN else f"the worst {SHOWN} of {len(effects)} runs"
        console.print(f"\nIts error, measured now, and how many times the tolerance that is: {count}", style="bold", soft_wrap=True)
        console.print(_effects_table(effects[:SHOWN]))


def _effects_table(effects: list[Effect]) -> Table:
    table = Table(*(Column(name, overflow="fold") for name in ("case", "dtype", "error", "allowed", "times")))
    for one in effects:
        allowed = f"{one.allowed:.3g}" if one.allowed else "none"
        size = (f"{one.error:.3g}", allowed, f"{one.times:.3g}") if not one.message else ("-", allowed, one.message)
        table.add_row(one.case, one.dtype, *size)
    return table
