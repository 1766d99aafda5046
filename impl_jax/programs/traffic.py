"""The data that the devices of a compiled program exchange."""

import math
import re
from collections.abc import Iterator

import jax

__all__ = ["traffic"]

KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) [^\n]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_COLLECTIVE = re.compile(rf" = (.+?) ({KINDS})(?:-start)?\(")
_ARRAY = re.compile(r"\b([a-z]+)(\d+)\w*\[([\d,]*)\]")
_CALLED = re.compile(r"\b(?:body|calls|to_apply|\w+_computations?)=(?:\{([^}]*)\}|%?([\w.-]+))")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
# The devices of a group: listed, counted, or named by axes of a mesh.
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_COUNTED = re.compile(r"replica_groups=\[\d+,(\d+)\]")
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\].*?\{('[^}]*)\}")


def traffic(compiled: jax.stages.Compiled) -> list[tuple[str, int]]:
    """Returns (kind, bytes) of every collective of a `jax.jit(...).lower(...).compile()` program.

    Bytes are the larger of a device's input and output. A collective of several arrays counts once
    for each; one in a loop, once per iteration. XLA on CPUs reduces and then slices where other
    backends have a reduce-scatter. Raises ValueError on a loop with an unknown number of
    iterations.
    """
    computations = _COMPUTATION.findall(compiled.as_text() or "")
    bodies = {name: body.splitlines() for _, name, body in computations}
    entry = next(name for start, name, _ in computations if start)
    return list(_of(bodies, entry))


def _of(bodies: dict[str, list[str]], name: str) -> Iterator[tuple[str, int]]:
    for line in bodies[name]:
        if found := _COLLECTIVE.search(line):
            arrays, kind = _ARRAY.findall(found[1]), found[2]
            if "-start(" in line and kind != "all-reduce":  # operands, then results
                arrays = arrays[len(arrays) // 2 :]
            parts = _devices(line) if kind == "reduce-scatter" else 1
            yield from ((kind, parts * _bytes(bits, shape)) for _, bits, shape in arrays)
            continue
        names = ",".join(several or one for several, one in _CALLED.findall(line)).split(",")
        called = [name.strip(" %") for name in names]
        inside = [one for own in called if own in bodies for one in _of(bodies, own)]
        if inside and " while(" in line:
            turns = _TRIPS.search(line)
            if turns is None:
                raise ValueError(f"a loop must have a known trip count; got {line.strip()}")
            inside *= int(turns[1])
        yield from inside


def _bytes(bits: str, shape: str) -> int:
    return math.prod(map(int, filter(None, shape.split(",")))) * int(bits) // 8


def _devices(line: str) -> int:
    """Returns the number of devices of a collective."""
    if found := _LISTED.search(line):
        return found[1].count(",") + 1
    if found := _COUNTED.search(line):
        return int(found[1])
    if found := _NAMED.search(line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", found[2]))
    raise ValueError(f"a collective must name its devices; got {line.strip()}")
