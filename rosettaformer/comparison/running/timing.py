"""Times both sides in interleaved rounds, and measures their memory."""

import statistics
from collections.abc import Sequence
from typing import Any

from .side_process import Failed, Process

MODES = ("eager", "compiled")


def timed(sides: Sequence[Process], modes: Sequence[str], rounds: int, step: bool) -> list[dict[str, Any]]:
    """Returns a row for forward and for step in each mode: the median, the first call and the peak memory of both sides."""
    rows = []
    for what in ("forward", *["step"] * step):
        for mode in modes:
            compiled = mode == "compiled"
            row: dict[str, Any] = {"what": what, "mode": mode, "sides": [{}, {}]}
            rows.append(row)
            ready = []
            for which, side in enumerate(sides):
                try:
                    first, calls = side.call("warm", what, compiled)
                except Failed as error:
                    if error.ended:
                        raise
                    row["sides"][which] = {"failed": str(error)}
                    continue
                row["sides"][which] = {"first_ms": 1e3 * first}
                ready.append((which, side, calls))
            samples: dict[int, list[float]] = {which: [] for which, *_ in ready}
            for _ in range(rounds):
                for which, side, calls in ready:
                    samples[which].append(1e3 * side.call("time", what, compiled, calls))
            for which, side, _ in ready:
                own = samples[which]
                row["sides"][which] |= {"median_ms": statistics.median(own), "min_ms": min(own)}
                if not compiled:
                    row["sides"][which]["peak_mib"] = side.call("memory", what, compiled)
    return rows
