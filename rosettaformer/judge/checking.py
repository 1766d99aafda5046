"""Checks ports like the command `check`, and returns the results as data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reference_numpy.sharding import Mesh
from reference_numpy.suggestions import known

from ..common.backends import PORTS
from . import runner
from .case import DTYPES, Case
from .result import Result
from .selection import Selection, cases_for, require_lists
from .summary import Summary

DEVICES, MODES = ("cpu", "cuda", "cuda-tf32"), ("eager", "compiled")
LIMIT = 180.0  # seconds for one case, and for the start of a port


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
    """Checks ports against the reference.

    Returns a `Summary`: `conforms` is the verdict, `results` has one result per case and dtype.

    ports: as on the command line, such as "my_port.py", "torch" or "model.onnx"; by default the
    three ports of this project. like: the model to compare with, a family such as "qwen3" or a
    Hugging Face checkpoint. checkpoint: weights for the whole model; for exported files, the
    weights they were made from. components, expression, dtypes, meshes (such as "data=2,model=2"),
    gradients, full: which cases run; by default all without gradients, and for this project's ports
    only the core. seed: seed for a family's random weights. memory: memory for the cases of a
    model, in GB. limit: seconds for one case. min_cases: the least number of comparisons.

    Raises ValueError on bad input. A port that does not start and a missing framework are results.
    """
    selection = Selection(
        components=components, expression=expression, dtypes=dtypes, grad=gradients, full=full, like=str(like), seed=seed, memory=memory,
        checkpoint=None if checkpoint is None else Path(checkpoint), meshes=[Mesh.parse(mesh) for mesh in meshes],
    )  # fmt: skip
    require_lists(modes=modes, devices=devices)
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
    """Runs the selected cases in every dtype, device and mode. options: see `runner.run`.

    modes: by default the port's own; all of them with `full`. devices: by default the CPU.
    """
    known("device", devices, DEVICES)
    known("mode", modes, MODES)
    every = ("all",) if selection.full and not selection.meshes else ("",)
    dtypes = selection.dtypes or DTYPES
    return runner.run(cases, ports, dtypes, devices or ("cpu",), modes or every, precision=selection.expect, **options)
