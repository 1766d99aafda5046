"""Checks our ports on several meshes and writes a table of the results.

Run it with `make evidence STEP=meshes`.
"""

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evidence import HOUSE, kept, write

MESHES = {
    "torch": ("data=2", "model=2", "data=2,replicate", "data=2,model=2", "data=4", "model=4"),
    "jax": ("data=2,model=4", "data=4,model=2", "data=8", "model=8"),
    "tf": ("data=2,replicate",),
}
DTYPES = ("float64", "float32")
STEPS, LOSSES = "training_steps", ("training_loss", "classification_loss")

HEAD = f"""# Results on several devices

`rosettaformer check PORT --mesh MESH --dtype float64 --dtype float32` compares each port on a mesh with
the reference on one device, on the core cases (docs/check.md). torch {version("torch").partition("+")[0]} runs
one process per device, with gloo; JAX {version("jax")} has several CPU devices in one process, and TensorFlow
{version("tensorflow-cpu")} has logical CPUs. *Gradients* are those of every component, model and loss. *Ten steps*
are the losses of ten training steps and the parameters after them. Each number is the largest error
divided by NumPy's own rounding error in that dtype; up to 4 passes (docs/decisions.md, TOLERANCE). Two
numbers: float64, float32.

| port | mesh | outputs | losses | gradients | ten steps | compared | failed | not compared |
|---|---|---|---|---|---|---|---|---|
"""


def group(component: str) -> str:
    """Returns a component's column."""
    if component == STEPS:
        return "ten steps"
    if component.endswith("_vjp"):
        return "gradients"
    return "losses" if component in LOSSES else "outputs"


def row(port: str, mesh: str, report: Mapping[str, Any]) -> str:
    """Returns the row of a port on a mesh, from the JSON of `check`."""
    results, cells = report["results"], []
    for column in ("outputs", "losses", "gradients", "ten steps"):
        worst = []
        for dtype in DTYPES:
            ratios = [
                one["ratio"] for one in results if group(one["component"]) == column and one["dtype"] == dtype and one["ratio"] is not None
            ]
            worst.append(f"{max(ratios):.2f}" if ratios else "none")
        cells.append(", ".join(worst))
    missing = sum(one["count"] for one in report["not_compared"])
    return f"| {port} | `{mesh}` | {' | '.join(cells)} | {report['compared']} | {report['failed']} | {missing} |\n"


def checked(port: str, mesh: str) -> str:
    """Checks a port on a mesh and returns its row."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.json")
        dtypes = [word for dtype in DTYPES for word in ("--dtype", dtype)]
        subprocess.run([sys.executable, "-m", "rosettaformer", "check", port, "--mesh", mesh, *dtypes, "--json", str(file)], cwd=HOUSE)
        return row(port, mesh, json.loads(file.read_text()))


def main(path: str) -> None:
    """Writes the page."""
    folder = Path(path)
    asked = [(port, mesh) for port, meshes in MESHES.items() for mesh in meshes]
    rows = [kept(folder, f"{port} {mesh}", functools.partial(checked, port, mesh)) for port, mesh in asked]
    write(folder, "meshes.md", HEAD + "".join(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
