"""Checks our ports on every mesh of docs/meshes.md and writes its table.

`make meshes` is the command. `python tools/meshes.py docs/meshes.md torch` checks one port anew, and keeps the rows of the others.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from documents import HOUSE, made_by

from rosettaformer.atomic import replacing

MESHES = {
    "torch": ("data=2", "model=2", "data=2,replicate", "data=2,model=2", "data=4", "model=4"),
    "jax": ("data=2,model=4", "data=4,model=2", "data=8", "model=8"),
    "tf": ("data=2,replicate",),
}
DTYPES = ("float64", "float32")
STEPS, LOSSES = "training_steps", ("training_loss", "classification_loss")

HEAD = f"""# The matrix on several devices

{made_by("meshes")}
`rosettaformer check PORT --mesh MESH --dtype float64 --dtype float32` compares each port on a mesh with the reference on one device.
[check.md](check.md#on-several-devices) says what is asked; these are the core cases. torch {version("torch").partition("+")[0]} has a
process for each device, with gloo; JAX {version("jax")} has CPU devices of one process, and TensorFlow
{version("tensorflow-cpu")} logical CPUs. *Gradients* are those
of every component, model and loss. *Ten steps* are the losses of ten steps of training and the parameters after them. A number is the
largest error in units of plain NumPy's own in that dtype; up to 4 passes ([decisions.md](decisions.md#tolerance)). Two numbers: float64,
float32.

| port | mesh | outputs | losses | gradients | ten steps | compared | failed | not compared |
|---|---|---|---|---|---|---|---|---|
"""


def group(component: str) -> str:
    """The column of a component."""
    if component == STEPS:
        return "ten steps"
    if component.endswith("_vjp"):
        return "gradients"
    return "losses" if component in LOSSES else "outputs"


def row(port: str, mesh: str, report: Mapping[str, Any]) -> str:
    """The row of a port on a mesh, from what `check --json` writes."""
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
    """Checks a port on a mesh; returns its row."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.json")
        dtypes = [word for dtype in DTYPES for word in ("--dtype", dtype)]
        subprocess.run([sys.executable, "-m", "rosettaformer", "check", port, "--mesh", mesh, *dtypes, "--json", str(file)], cwd=HOUSE)
        return row(port, mesh, json.loads(file.read_text()))


def main(page: str, *ports: str) -> None:
    """Writes the page, with new rows of these ports, or of all; after each row."""
    path = Path(page)
    old = path.read_text().splitlines(keepends=True) if path.exists() else []
    rows = {(cells[1].strip(), cells[2].strip(" `")): line for line in old if len(cells := line.split("|")) > 3}
    asked = [(port, mesh) for port, meshes in MESHES.items() for mesh in meshes]
    for port, mesh in asked:
        if not ports or port in ports:
            rows[port, mesh] = checked(port, mesh)
            with replacing(path) as temporary:
                temporary.write_text(HEAD + "".join(rows[one] for one in asked if one in rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
