"""Collectives of a compiled program, read from its HLO text."""

import math
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from reference_numpy.sharding import Mesh

from .traffic import BOTH, DATA, MODEL

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
Found = Counter[tuple[str, str, tuple[int, ...]]]  # (kind, axis, shape of the larger side) -> payload of a device and a run

_INSTRUCTION = re.compile(rf" = (?P<type>.*?) (?P<kind>{'|'.join(KINDS)})(?P<start>-start)?\(")
_ARRAY = re.compile(r"\b([a-z]+)(\d*)\w*\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_PAIRS = re.compile(r"source_target_pairs=\{\{(\d+),(\d+)\}")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([\w', ]*)\}")
_SIZE = re.compile(r"'(\w+)'=(\d+)")


def collectives(text: str, mesh: Mesh) -> Found:
    """Returns the payload of every collective of a program, each times the runs of its loop. Of a collective of several tensors, each
    counts with its shape.

    Raises ValueError on groups of devices in another notation, and on a loop with a collective whose length the program does not tell.
    """
    found, lines = Counter[tuple[str, str, tuple[int, ...]]](), _computations(text)
    for instruction, runs in _run(lines, "ENTRY", 1):
        if match := _INSTRUCTION.search(instruction):
            group = _group(instruction)
            arrays = _ARRAY.findall(match["type"])
            if match["start"] and match["kind"] == "all-gather":
                arrays = arrays[len(arrays) // 2 :]  # behind its inputs
            for kind, bits, sizes in arrays:
                shape = tuple(int(size) for size in sizes.split(",") if size)
                item = int(bits) // 8 if bits else 1
                more = len(group) if match["kind"] == "reduce-scatter" else 1
                assert kind
                found[match["kind"], _axis(group, mesh), shape] += math.prod(shape) * item * more * runs
    return found


def _computations(text: str) -> dict[str, list[str]]:
    """Returns the instructions of each computation by its name; the program's is ENTRY."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith((" ", "HloModule")):
            words = line.split()
            lines = found.setdefault("ENTRY" if words[0] == "ENTRY" else words[0].lstrip("%"), [])
        elif line.startswith(" "):
            lines.append(line)
    return found


def _run(computations: dict[str, list[str]], name: str, runs: int) -> Iterator[tuple[str, int]]:
    """Yields the instructions of a computation and of those that it calls, with how often each runs."""
    for line in computations.get(name, []):
        yield line, runs
        called = _CALLED.findall(line)
        for branches in _BRANCHES.findall(line):
            called += [branch.strip().lstrip("%") for branch in branches.split(",")]
        for other in called:
            trips = _TRIPS.search(line)
            inside = [*_run(computations, other, runs * (int(trips[1]) if trips else 1))]
            if " while(" in line and not trips and any(_INSTRUCTION.search(each) for each, _ in inside):
                raise ValueError(f"a loop with collectives must have a known length; got {line.strip():.200}")
            yield from inside


def _group(line: str) -> tuple[int, ...]:
    """Returns the first group of devices that exchange with one another."""
    if match := _LISTED.search(line):
        return tuple(map(int, match[1].split(",")))
    if match := _PAIRS.search(line):
        return int(match[1]), int(match[2])
    if match := _IOTA.search(line):
        return _first(_order(match[3], match[4]).reshape(int(match[1]), int(match[2])))
    if match := _NAMED.search(line):
        axes = {name: int(size) for name, size in _SIZE.findall(match[1])}
        devices = _order(match[2] or str(math.prod(axes.values())), match[3]).reshape(list(axes.values()))
        return _first(devices[tuple(slice(None) if f"'{name}'" in match[4] else 0 for name in axes)][None])
    raise ValueError(f"a collective must name its groups of devices in a known notation; got {line.strip():.300}")


def _order(sizes: str, axes: str | None) -> np.ndarray:
    """Returns the numbers of the devices in a grid of these sizes, with its axes in this order."""
    grid = np.arange(math.prod(map(int, sizes.split(",")))).reshape([int(size) for size in sizes.split(",")])
    return grid.transpose([int(axis) for axis in axes.split(",")]) if axes else grid


def _first(groups: np.ndarray) -> tuple[int, ...]:
    return tuple(map(int, groups[0].reshape(-1)))


def _axis(group: tuple[int, ...], mesh: Mesh) -> str:
    """Returns the axis of the mesh along which a group lies."""
    rows, columns = {device // mesh.model for device in group}, {device % mesh.model for device in group}
    return MODEL if len(rows) == 1 else DATA if len(columns) == 1 else BOTH
