"""The plan of a training step, the fullest device's memory and traffic, as JSON and tables."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from reference_numpy import parameters

from . import memory, traffic
from .step import Step

GIB = 2**30


def plan(step: Step) -> dict[str, Any]:
    """Returns the needs of the fullest device, in bytes."""
    held = memory.memory(step)
    return {
        "mesh": str(step.mesh),
        "devices": step.mesh.devices,
        "rows": step.rows,
        "source": step.source,
        "target": step.target,
        "dtype": step.dtype,
        "recompute": step.recompute,
        "microbatches": step.recipe.microbatches,
        "parameter_count": parameters.count(step.config),
        "memory": held,
        "memory_total": sum(held.values()),
        "traffic": [collective._asdict() | {"ring": round(collective.wire(step.mesh))} for collective in traffic.traffic(step)],
        "traffic_total": traffic.total(step),
        "traffic_by_ring": traffic.by_ring(step),
    }


def tables(found: dict[str, Any], limit: float) -> Iterator[Table]:
    """Yields the tables of a plan. limit: GiB per device."""
    fits = "fits" if found["memory_total"] <= limit * GIB else "does not fit"
    held = _table(f"{found['mesh']}: {fits} {limit:g} GiB", "GiB")
    for what, size in (*found["memory"].items(), ("total", found["memory_total"])):
        held.add_row(what, gib(size))
    yield held
    sent = _table("a step's traffic", "collective", "over", "GiB", "by ring")
    for row in found["traffic"]:
        sent.add_row(row["purpose"], row["kind"], row["axis"], gib(row["payload"]), gib(row["ring"]))
    sent.add_row("total", "", "", gib(found["traffic_total"]), gib(found["traffic_by_ring"]))
    yield sent


def compared(rows: dict[str, dict[str, Any] | str], limit: float) -> Table:
    """Returns a table of strategies. rows: the plan of each, or why it has none."""
    table = _table("strategy", "mesh", "GiB", f"fits {limit:g}", "traffic", "over data", "over model")
    for name, found in rows.items():
        if isinstance(found, str):
            table.add_row(name, found)
            continue
        over = {axis: sum(row["payload"] for row in found["traffic"] if row["axis"] == axis) for axis in (traffic.DATA, traffic.MODEL)}
        fits = "yes" if found["memory_total"] <= limit * GIB else "no"
        table.add_row(name, found["mesh"], gib(found["memory_total"]), fits, gib(found["traffic_total"]), *map(gib, over.values()))
    return table


def gib(size: float) -> str:
    """Formats bytes as GiB, with three decimals below 1 GiB."""
    return f"{size / GIB:,.1f}" if size >= GIB else f"{size / GIB:.3f}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title, box=None)
    for column in columns:
        table.add_column(column, justify="left" if column in ("mesh", "collective", "over") else "right", overflow="fold")
    return table
