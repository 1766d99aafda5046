"""Parallelism strategies: the mesh that each builds for a number of devices."""

from collections.abc import Callable

from reference_numpy import TransformerConfig, sharding
from reference_numpy.sharding import Mesh

NODE = 8  # most columns of `both`: devices within a machine, which have fast links


def both(config: TransformerConfig, devices: int) -> Mesh:
    """Returns the mesh with the most columns that devices and model allow, up to NODE."""
    columns = (model for model in range(NODE, 0, -1) if devices % model == 0)
    meshes = (Mesh(data=devices // model, model=model) for model in columns)
    return next(mesh for mesh in meshes if not problem(config, mesh))


def problem(config: TransformerConfig, mesh: Mesh) -> str:
    """Returns why the model does not fit on the mesh, or ""."""
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
