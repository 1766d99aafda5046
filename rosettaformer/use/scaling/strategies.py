"""Strategies: the mesh that each makes of a number of devices."""

from collections.abc import Callable

from reference_numpy import TransformerConfig, sharding
from reference_numpy.sharding import Mesh

NODE = 8  # the most columns of `both`: the devices of one machine, whose links are fast


def both(config: TransformerConfig, devices: int) -> Mesh:
    """Returns the mesh with the most columns, at most NODE, that divide the devices and the model."""
    columns = (model for model in range(NODE, 0, -1) if devices % model == 0)
    meshes = (Mesh(data=devices // model, model=model) for model in columns)
    return next(mesh for mesh in meshes if not problem(config, mesh))


def problem(config: TransformerConfig, mesh: Mesh) -> str:
    """Returns why the model cannot lie on the mesh, or "" if it can."""
    try:
        sharding.check(config, mesh)
    except ValueError as error:
        return str(error)
    return ""


STRATEGIES: dict[str, Callable[[TransformerConfig, int], Mesh]] = {
    "data parallel": lambda config, devices: Mesh(data=devices, replicate=True),
    "fully sharded": lambda config, devices: Mesh(data=devices),
    "tensor parallel": lambda config, devices: Mesh(model=devices),
    "both": both,
}
