"""A process's share of a mesh: parts of parameters, rows of a batch, keep masks; and gathers."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from reference_numpy import TransformerConfig, layout, sharding, sites
from reference_numpy import parameters as canonical
from reference_numpy.sharding import Mesh

from .. import dropout, framework, weights

__all__ = ["Held", "Place", "draw", "gathered", "own", "places", "traffic", "whole"]


# collectives, as named in both of torch's libraries, ignoring underscores
KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "scatter",
    "gather",
)


@dataclass(frozen=True)
class Place:
    """The layout of a parameter: native name, canonical and native axes, and the native axes that
    model and data split, or None.
    """

    native: str
    letters: str
    axes: str
    sizes: Mapping[str, int]
    model: int | None
    data: int | None


def places(
    config: TransformerConfig, mesh: Mesh, component: str = "transformer"
) -> dict[str, Place]:
    """Returns the place of every parameter, by canonical name.

    Raises ValueError if the mesh does not divide the config. FSDP splits parameters declared whole
    along data on their first axis.
    """
    shapes, letters = canonical.shapes(config, component), canonical.axes(config, component)
    found = {}
    for name, split in sharding.splits(config, mesh, component).items():
        native, axes = layout.native(name, letters[name], weights.TABLE)
        groups = re.findall(r"\([^)]*\)|\w", axes)
        over: dict[str, int | None] = {"model": None, "data": None if mesh.replicate else 0}
        for letter, places in zip(letters[name].split(), split, strict=True):
            axis = next(index for index, group in enumerate(groups) if letter in group)
            over |= dict.fromkeys((places,) if isinstance(places, str) else places or (), axis)
        sizes = dict(zip(letters[name].split(), shapes[name], strict=True))
        found[name] = Place(native, letters[name], axes, sizes, **over)
    return found


def own(place: Place, array: np.ndarray, mesh: Mesh, rank: int) -> np.ndarray:
    """Returns a process's part of a canonical array, in native layout, as a view if possible."""
    part = layout.rearranged(array, place.letters, place.axes, place.sizes)
    row, column = divmod(rank, mesh.model)
    for axis, parts, index in ((place.model, mesh.model, column), (place.data, mesh.data, row)):
        if axis is not None:
            chosen = sharding.chunks(part.shape[axis], parts)[index]
            part = part[(slice(None),) * axis + (chosen,)]
    return part


class Held:
    """The parts of a module's parameters that a process holds; here, alone, all of them."""

    def __init__(
        self, config: TransformerConfig, mesh: Mesh, component: str = "transformer"
    ) -> None:
        self.mesh, self.places = mesh, places(config, mesh, component)
        self.group = sharding.Group()

    def write(self, name: str, part: Tensor, array: np.ndarray) -> None:
        """Writes this process's part of a canonical array."""
        values = own(self.places[name], array, self.mesh, self.group.rank)
        if part.numel():
            with torch.no_grad():
                part.copy_(weights.from_numpy(values, part.device))

    def read(self, name: str, part: Tensor) -> np.ndarray:
        """Copies a canonical array from the parts of all processes, which must all call this."""
        place = self.places[name]
        return layout.relayout(weights.to_numpy(part), place.axes, place.letters, place.sizes)


def whole(place: Place, part: Tensor, mesh: Mesh, devices: DeviceMesh) -> Tensor:
    """Gathers a parameter, in native layout, from the parts of all processes."""
    shape = [*layout.shape(place.axes, place.sizes)]
    if place.model is not None:
        column = sharding.chunks(shape[place.model], mesh.model)[devices["model"].get_local_rank()]
        full, shape[place.model] = shape[place.model], column.stop - column.start
    if place.data is not None and np.prod(shape):
        part = gathered(part, place.data, shape[place.data], devices["data"])
    if place.model is not None:
        part = gathered(part.reshape(shape), place.model, full, devices["model"])
    return part


def gathered(part: Tensor, axis: int, size: int, devices: DeviceMesh) -> Tensor:
    """Gathers a tensor of this size along the axis, of which each process has a chunk."""
    from torch.distributed.tensor import DTensor, Shard

    whole = part.new_empty([*part.shape[:axis], size, *part.shape[axis + 1 :]], device="meta")
    return DTensor.from_local(
        part, devices, [Shard(axis)], run_check=False, shape=whole.shape, stride=whole.stride()
    ).full_tensor()


def draw(
    config: TransformerConfig,
    rows: range,
    lengths: tuple[int, int],
    seed: int,
    step: int,
    device: torch.device,
) -> dict[str, Tensor]:
    """Draws keep masks for these rows of a batch, at all sites. A row's masks depend only on seed,
    step and the row's index in the batch.
    """
    shapes = sites.shapes(config, len(rows), *lengths)
    entries = sum(math.prod(shape[1:]) for shape in shapes.values())
    generator, drawn = torch.Generator(device), []
    for row in rows:
        state = np.random.SeedSequence([seed, step, row]).generate_state(1, np.uint64)
        drawn.append(dropout.words(entries, device, generator.manual_seed(int(state[0]))))
    return dropout.cut(config, shapes, torch.stack(drawn))


def traffic(function: Callable[[], object]) -> list[tuple[str, int]]:
    """Returns the collectives between processes that the function starts, in order: kind, and bytes
    of the whole tensor that is reduced, gathered or sent.
    """
    with _Traffic() as seen:
        function()
    return seen.found


class _Traffic(framework.TorchDispatchMode):
    """Records the functional collectives of DTensor, and those of FSDP2."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(framework.is_sharded, types)):
            return NotImplemented  # redispatched as the collectives it is made of
        result = func(*args, **(kwargs or {}))
        space, _, name = func.name().partition("::")
        plain = name.replace("_", "")
        kind = next((kind for kind in KINDS if plain.startswith(kind.replace("_", ""))), None)
        if space in ("c10d", "_c10d_functional") and kind and _size(args) > 1:
            self.found.append((kind, max(x.nbytes for x in _tensors((args, result)))))
        return result


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _size(args: tuple) -> int:
    """Returns the number of processes of a collective, from its group argument or final name."""
    for group in args:
        if isinstance(group, torch.ScriptObject):
            return int(dist.ProcessGroup.unbox(group).size())
    return framework.group_size(args[-1])
