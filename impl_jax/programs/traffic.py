"""What the devices of a compiled program send each other."""

import math
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["traffic"]

KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) .*\{$", re.MULTILINE)
_COLLECTIVE = re.compile(rf" = (.+?) ({KINDS})(?:-start)?\(")
_ARRAY = re.compile(r"\b([a-z]+)(\d+)\w*\[([\d,]*)\]")
_CALLED = re.compile(
    r"(?:body|to_apply|calls|condition|\w+_computations?)=\{?%?([\w.-]+(?:, %?[\w.-]+)*)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def traffic(compiled: Any) -> list[tuple[str, int]]:
    """(kind, bytes) of every collective of a program of `jax.jit(...).lower(...).compile()`.

    Bytes are those of the result on one device: what an all-gather brings together, what an
    all-reduce adds up, the part of a reduce-scatter. One that several arrays share counts once for
    each; one in a loop, as often as the loop runs. XLA on CPUs reduces and then slices where others
    have a reduce-scatter. Raises ValueError on a loop whose number of turns is not known.
    """
    text = compiled.as_text()
    starts = [*_COMPUTATION.finditer(text)]
    ends = [*(start.start() for start in starts[1:]), len(text)]
    bodies = {
        start[1]: text[start.start() : end].splitlines()[1:]
        for start, end in zip(starts, ends, strict=True)
    }
    entry = next(start[1] for start in starts if start[0].startswith("ENTRY"))
    return list(_of(bodies, entry))


def _of(bodies: dict[str, list[str]], name: str) -> Iterator[tuple[str, int]]:
    for line in bodies[name]:
        if found := _COLLECTIVE.search(line):
            arrays = _ARRAY.findall(found[1])
            if "-start(" in line and found[2] != "all-reduce":  # operands and results
                arrays = arrays[len(arrays) // 2 :]
            yield from ((found[2], _bytes(*array)) for array in arrays)
            continue
        called = [one.strip(" %") for names in _CALLED.findall(line) for one in names.split(",")]
        inside = [one for own in called if own in bodies for one in _of(bodies, own)]
        if inside and " while(" in line:
            turns = _TRIPS.search(line)
            if turns is None:
                raise ValueError(f"a loop must have a known number of turns; got {line.strip()}")
            inside *= int(turns[1])
        yield from inside


def _bytes(kind: str, bits: str, shape: str) -> int:
    return math.prod(map(int, filter(None, shape.split(",")))) * int(bits) // 8
