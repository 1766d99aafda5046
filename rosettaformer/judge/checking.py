"""Checks ports, as the command `check` does, and returns the results as data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reference_numpy.sharding import Mesh
from reference_numpy.suggestions import known

from ..common.backends import PORTS
from . import runner
from .case import DTYPES, Case
from .result import Result
from .selection import Selection, cases_for
from .summary import Summary

DEVICES, MODES = ("cpu", "cuda", "cuda-tf32"), ("eager", "compiled")
LIMIT = 180.0  # seconds for one case, or for the start


def check(
    *ports: str,
    like: str | Path = "",
    checkpoint: str | Path | None = None,
    components: Sequence[str] = (),
    expression: str | None = None,
    dtypes: Sequence[str] = (),
    meshes: Sequence[str] = (),
    gradients: bool = False,
    full: bool = False,
    modes: Sequence[str] = (),
    devices: Sequence[str] = (),
    seed: int = 0,
    memory: float | None = None,
    limit: float = LIMIT,
    min_cases: int = 1,
) -> Summary:
    """Runs ports against the reference: a Summary, whose `conforms` is the verdict, and whose `results` are those of each case.

    ports: as the command takes them, such as "my_port.py", "torch" or "model.onnx"; the three of this project if none is given. like: a
    family, or a folder of Hugging Face, as the whole model that they are judged on; checkpoint: its weights for ports of parts, and for
    exported files. components, expression, dtypes, meshes ("data=2,model=2"), gradients, full: which cases are run; by default the suite's,
    of our ports the core. seed: of the random weights of a family. memory: GB for the cases of a model. limit: seconds for one case.
    min_cases: how many must be compared. Raises ValueError on what cannot be read or contradicts itself. A port that does not start, or
    whose framework is missing, is a result.
    """
    selection = Selection(
        components=components, expression=expression, dtypes=dtypes, grad=gradients, full=full, like=str(like), seed=seed, memory=memory,
        checkpoint=None if checkpoint is None else Path(checkpoint), meshes=[Mesh.parse(mesh) for mesh in meshes],
    )  # fmt: skip
    named = ports or tuple(PORTS)
    with cases_for(ports, selection) as cases:
        core = selection.quick and {*named} <= {*PORTS}
        asked = [case for case in cases if case.core] if core else cases
        return Summary(run(asked, named, selection, modes, devices, limit=limit, quick_compile=core), min_cases)


def run(
    cases: Sequence[Case],
    ports: Sequence[str],
    selection: Selection,
    modes: Sequence[str] = (),
    devices: Sequence[str] = (),
    **options: Any,
) -> list[Result]:
    """Returns the results of the cases that are chosen, in every dtype, device and mode. options: see `runner.run`.

    modes: by default the port's own, or every one if everything is chosen. devices: by default the CPU.
    """
    known("device", devices, DEVICES)
    known("mode", modes, MODES)
    every = ("all",) if selection.full and not selection.meshes else ("",)
    dtypes = selection.dtypes or DTYPES
    return runner.run(cases, ports, dtypes, devices or ("cpu",), modes or every, precision=selection.expect, **options)
