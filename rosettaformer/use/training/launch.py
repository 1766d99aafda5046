"""Trains with one process per device of a mesh."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from reference_numpy.sharding import Mesh

from ...common.meshes import launching
from .checkpoint_store import Store, steps_of
from .holding import alone
from .manifest import Manifest


def start(arguments: Sequence[str], mesh: Mesh, device: str, folder: Path) -> None:
    """Runs `rosettaformer train ARGUMENTS` in one process per device, and waits for all of them.

    Raises ValueError if a process fails, saying which one, how, and how to continue.
    """
    launching.refuse_missing(mesh, device)
    if Manifest.exists(folder):
        with alone(folder):  # fails early if another process trains the run
            pass
    if problem := launching.run("train", arguments, mesh, device):
        raise ValueError(f"{problem}; {way_on(folder)}")


def way_on(folder: Path) -> str:
    """Removes unfinished files, and returns a sentence on how to continue."""
    store = Store(folder)
    with contextlib.suppress(ValueError, OSError), alone(folder):
        store.clean()
    if not (paths := store.paths()):
        return "there is no checkpoint yet"
    return f"the last good checkpoint is that of step {steps_of(paths[-1])}; continue with --resume, on this or another --mesh"
