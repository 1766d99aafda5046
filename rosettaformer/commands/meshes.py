"""A command on the devices of a mesh: it runs here, or in processes that it starts."""

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
    help="Devices: data parts of a batch, each of model parts of the model. [default: one]",
)


def on_mesh(mesh: Mesh | None, backend: str, device: str, action: Callable[[], Any]) -> None:
    """Calls the action, in each of the processes of the mesh.

    Unless torchrun has started them, this process does, with its own words, and waits for them. Raises one ValueError for all of them.
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
