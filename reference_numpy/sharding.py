"""Sharding over several devices: a mesh, and what each canonical parameter is split over.

A mesh has two axes. `data` splits the rows of a batch and also every parameter, along an axis that
nothing else splits (full sharding; Rajbhandari et al. 2020, ZeRO stage 3), unless parameters are
replicated. `model` splits heads, groups, feed-forward and vocabulary (Shoeybi et al. 2019,
Megatron-LM, section 3), and whole experts (Lepikhin et al. 2020, GShard, section 3.1).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import numpy as np

from . import parameters
from .arrays import Array
from .config import TransformerConfig as Config
from .fields import BOOLEAN, Fields, Values, integer

__all__ = [
    "OVER_MODEL",
    "Group",
    "Mesh",
    "check",
    "chunks",
    "parts",
    "repeated",
    "splits",
    "spread",
]

OVER_MODEL = ("h", "g", "f", "v", "w", "x")  # parameter axes that `model` splits
_DIVIDED = {
    "h": "heads",
    "f": "the feed-forward width",
    "w": "the shared expert's width",
    "x": "experts",
}
Place = str | tuple[str, ...] | None
Split = tuple[Place, ...]  # per axis: None, a mesh axis, or both, `("model", "data")`


@dataclass(frozen=True, kw_only=True)
class Mesh(Fields):
    """A grid of `data * model` devices; the devices of a row share its part of the batch.

    Device i is in row `i // model`, column `i % model`. Raises ValueError on a size below 1.
    """

    KIND: ClassVar[str] = "mesh"

    data: Annotated[int, integer(1)] = 1  # parts of a batch
    model: Annotated[int, integer(1)] = 1  # parts of every layer
    replicate: Annotated[bool, BOOLEAN] = False  # keep parameters whole along data

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a mesh such as `data=2,model=4` or `data=8,replicate`; omitted sizes are 1.

        Raises ValueError on any other text.
        """
        given: Values = {}
        for part in (part.strip() for part in text.split(",")):
            name, _, size = part.partition("=")
            known = name in ("data", "model") and size.isdecimal() and len(size) < 8
            if name in given or not (known or part == "replicate"):
                wanted = "data=N,model=N (either may be omitted), plus replicate to keep"
                wanted = f"{wanted} parameters whole along data"
                raise ValueError(f"a mesh must be {wanted}; got {text!r:.100}")
            given[name] = int(size) if known else True
        return cls(**given)

    def __str__(self) -> str:
        return f"data={self.data},model={self.model}" + ",replicate" * self.replicate

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.data * self.model

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis by name."""
        return {"data": self.data, "model": self.model}


class Group:
    """The processes that run a mesh; here only this one. Ports have a Group with the same names."""

    rank, size = 0, 1

    def any(self, flag: bool) -> bool:
        """Returns whether any process sets the flag; every process must call this."""
        return flag

    def barrier(self) -> None:
        """Waits until every process arrives."""


def check(config: Config, mesh: Mesh) -> None:
    """Raises ValueError listing every axis that `model` must divide and does not.

    There may be fewer groups than parts: each group is then on equally many devices. The vocabulary
    need not divide: its last part is shorter (`chunks`).
    """
    sizes, parts = config.sizes, mesh.model
    used = {letter for letters in parameters.axes(config).values() for letter in letters.split()}
    problems = [
        f"{what} must be a multiple of the mesh's model axis; "
        f"got {letter}={sizes[letter]}, model={parts}"
        for letter, what in _DIVIDED.items()
        if letter in used and sizes[letter] % parts
    ]
    if sizes["g"] % parts and parts % sizes["g"]:
        problems.append(
            "key and value heads must be a multiple of the mesh's model axis, or divide it; "
            f"got g={sizes['g']}, model={parts}"
        )
    if problems:
        raise ValueError("; ".join(problems))


def spread(config: Config, mesh: Mesh) -> Config:
    """Returns the config of the same function with groups for every part of a layer: groups that
    are fewer than the parts are repeated (`repeated`), as decoding stores their keys.

    Raises ValueError as `check` does.
    """
    check(config, mesh)
    return config.replace(key_value_heads=max(config.key_value_heads, mesh.model))


def repeated(array: Array, letters: str, groups: int) -> Array:
    """Repeats the groups of a parameter to `groups` groups, each next to its copies."""
    if "g" not in (axes := letters.split()) or array.shape[axes.index("g")] == groups:
        return array
    axis = axes.index("g")
    return np.repeat(array, groups // array.shape[axis], axis)


def splits(config: Config, mesh: Mesh, component: str = "transformer") -> dict[str, Split]:
    """Returns what every parameter of a component is split over, by canonical name: one place per
    axis, as in `jax.sharding.PartitionSpec`.

    `query.kernel`, `d h k`: `("data", "model", None)`. `model` splits the axes `OVER_MODEL`; groups
    that it does not divide stay whole, and so does the router. `data` splits d, or else the first
    axis whose part it divides, after `model` if both split it; a parameter without such an axis
    stays whole. Raises ValueError as `check` does.
    """
    check(config, mesh)
    shapes = parameters.shapes(config, component)
    return {
        name: tuple(_places(dict(zip(letters.split(), shapes[name], strict=True)), mesh))
        for name, letters in parameters.axes(config, component).items()
    }


def _places(sizes: Mapping[str, int], mesh: Mesh) -> Iterator[Place]:
    over_model = {letter for letter in sizes if mesh.model > 1 and letter in OVER_MODEL}
    if sizes.get("g", 0) % mesh.model:
        over_model -= {"g"}
    if [*sizes][-1] == "x":  # of a router
        over_model -= {"x"}
    over_data = ""
    if mesh.data > 1 and not mesh.replicate:
        even = (
            letter
            for letter in sorted(sizes, key=lambda letter: letter != "d")
            if sizes[letter] % (mesh.data * (mesh.model if letter in over_model else 1)) == 0
        )
        over_data = next(even, "")
    for letter in sizes:
        axes = ("model",) * (letter in over_model) + ("data",) * (letter == over_data)
        yield axes if len(axes) > 1 else axes[0] if axes else None


def parts(split: Split, mesh: Mesh) -> int:
    """Returns the number of parts that this parameter is split into; other devices hold copies."""
    axes = [axis for place in split for axis in (place if isinstance(place, tuple) else (place,))]
    return math.prod(mesh.sizes[axis] for axis in axes if axis)


def chunks(size: int, parts: int) -> list[slice]:
    """Splits an axis into slices of `ceil(size / parts)`; the last may be shorter or empty."""
    most = -(-size // parts)
    return [slice(min(i * most, size), min((i + 1) * most, size)) for i in range(parts)]
