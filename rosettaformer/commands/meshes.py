"""Runs a command on a device mesh, in this process or in several that it starts."""

from collections.abc import Callable
from typing import Any

import click

from reference_numpy.sharding import Mesh

from ..common.backends import imported
from .options import WORDS


def _parsed(ctx: click.Context, option: click.Parameter, value: str | None) -> Mesh | None:
    return None if value is None else Mesh.parse(value)


mesh_option = click.option(
    "--mesh",
    metavar="data=N,model=N",
    callback=_parsed,
    help="Device mesh: N-way data and N-way model parallelism. [default: one device]",
)


def on_mesh(mesh: Mesh | None, backend: str, device: str, action: Callable[[], Any]) -> None:
    """Calls the action in each process of the mesh.

    Unless torchrun has started the processes, this one starts them with its own arguments and
    waits. Raises ValueError if any of them fails.
    """
    if mesh is None:
        action()
        return
    from ..common.meshes import failing, launching, placing

    if placing.to_start(backend, mesh):
        imported(backend, "torch")
        context = click.get_current_context()
        if problem := launching.run(str(context.info_name), context.meta[WORDS], mesh, device):
            raise ValueError(problem)
        return
    placing.place(backend, device, mesh)
    with failing.recorded(*placing.started()):
        action()
