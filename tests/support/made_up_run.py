"""Made-up figures for the pages of the guide: other tests run the cases."""

from typing import Any

from rosettaformer.guide import build
from rosettaformer.guide.translation.table import PARTS, rows
from rosettaformer.judge.result import Result
from rosettaformer.judge.summary import Summary


def made_up() -> build.Run:
    """Returns results of two cases for each of three components."""
    names = ("layer_norm", "layer_norm_vjp", "multi_head_attention")
    results = [
        Result(f"{name}-{i}", name, port, dtype, "cpu", "eager", "pass", ratio=0.5 + i, noise=1e-7 * (i + 1))
        for name in names for dtype in ("float64", "float32") for port in ("torch", "tf", "jax") for i in range(2)
    ]  # fmt: skip
    return build.Run(Summary(results))


def made_up_values() -> dict[str, dict[str, dict[str, Any]]]:
    """Returns values of every snippet as its row declares them: codes agree, and measurements differ between the declared groups."""
    made: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows():
        groups = {name: group for group in row.groups.split("|") for name in group.split()}
        for name, cell in row.cells.items():
            values = {"code": [1.0], "measure": groups.get(name, name if row.kind else "alike"), "claims": 1}
            made.setdefault(row.id, {})[name] = {part: values[part] for part in PARTS if getattr(cell, part)}
    return made
