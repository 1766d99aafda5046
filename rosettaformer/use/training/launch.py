"""A training run in a process for each device of a mesh."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from reference_numpy.sharding import Mesh

from ...common.meshes import launching
from .checkpoint_store import Store, steps_of
from .holding import alone
from .manifest import Manifest


def start(arguments: Sequence[str], mesh: Mesh, device: str, folder: Path) -> None:
    """Runs `rosettaformer train ARGUMENTS` in a process for each device, and returns when all have ended well.

    Raises ValueError that says which process failed, how, and where the run can go on.
    """
    launching.refuse_missing(mesh, device)
    if Manifest.exists(folder):
        with alone(folder):  # refused now, where it costs nothing
            pass
    if problem := launching.run("train", arguments, mesh, device):
        raise ValueError(f"{problem}; {way_on(folder)}")


def way_on(folder: Path) -> str:
    """Removes what the processes were about to write, and says what there is."""
    store = Store(folder)
    with contextlib.suppress(ValueError, OSError), alone(folder):
        store.clean()
    if not (paths := store.paths()):
        return "there is no checkpoint yet"
    return f"the last good checkpoint is that of step {steps_of(paths[-1])}: go on with --resume, also with another --mesh"
