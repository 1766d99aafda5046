"""What the devices of a compiled program send each other."""

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
# The devices of a group: listed, as a number of groups of one size, or as axes of a mesh.
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_COUNTED = re.compile(r"replica_groups=\[\d+,(\d+)\]")
_NAMED = re.compile(r"replica_groups=mesh\[([^\]]*)\].*?\{('[^}]*)\}")


def traffic(compiled: jax.stages.Compiled) -> list[tuple[str, int]]:
    """(kind, bytes) of every collective of a program of `jax.jit(...).lower(...).compile()`.

    Bytes are the larger of what a device gives and gets. A collective that several arrays share
    counts for each; one in a loop, as often as the loop runs. XLA on CPUs reduces and then slices
    where others have a reduce-scatter. Raises ValueError on a loop whose number of turns is not
    known.
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
                raise ValueError(f"a loop must have a known number of turns; got {line.strip()}")
            inside *= int(turns[1])
        yield from inside


def _bytes(bits: str, shape: str) -> int:
    return math.prod(map(int, filter(None, shape.split(",")))) * int(bits) // 8


def _devices(line: str) -> int:
    """How many devices a collective is among."""
    if found := _LISTED.search(line):
        return found[1].count(",") + 1
    if found := _COUNTED.search(line):
        return int(found[1])
    if found := _NAMED.search(line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", found[2]))
    raise ValueError(f"a collective must name its devices; got {line.strip()}")
