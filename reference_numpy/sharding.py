"""How a model lies on several devices: a mesh, and what each canonical parameter is split over.

A mesh has two axes. `data` splits the rows of a batch, and with them every parameter along an axis
that nothing else splits (full sharding; Rajbhandari et al. 2020, ZeRO stage 3), unless parameters
are replicated. `model` splits heads, groups, the feed-forward and the vocabulary (Shoeybi et al.
2019, Megatron-LM, section 3).
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

OVER_MODEL = ("h", "g", "f", "v")  # the axes of parameters that `model` splits
Place = str | tuple[str, ...] | None
Split = tuple[Place, ...]  # for each axis: None, the axis of the mesh, or both, `("model", "data")`


@dataclass(frozen=True, kw_only=True)
class Mesh(Fields):
    """A grid of `data * model` devices; the devices of a row share its part of the batch.

    Device i stands in row `i // model`, column `i % model`. Raises ValueError on a size below 1.
    """

    KIND: ClassVar[str] = "mesh"

    data: Annotated[int, integer(1)] = 1  # parts of a batch
    model: Annotated[int, integer(1)] = 1  # parts of every layer
    replicate: Annotated[bool, BOOLEAN] = False  # parameters are whole along data

    @classmethod
    def parse(cls, text: str) -> Self:
        """The mesh of `data=2,model=4` or `data=8,replicate`; a size that is left out is 1.

        Raises ValueError on any other text.
        """
        given: Values = {}
        for part in (part.strip() for part in text.split(",")):
            name, _, size = part.partition("=")
            known = name in ("data", "model") and size.isdecimal() and len(size) < 8
            if name in given or not (known or part == "replicate"):
                wanted = "data=N,model=N, of which either may be left out, and replicate where"
                wanted = f"{wanted} parameters are whole along data"
                raise ValueError(f"a mesh is {wanted}; got {text!r:.100}")
            given[name] = int(size) if known else True
        return cls(**given)

    def __str__(self) -> str:
        return f"data={self.data},model={self.model}" + ",replicate" * self.replicate

    @property
    def devices(self) -> int:
        """How many devices there are."""
        return self.data * self.model

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis by name."""
        return {"data": self.data, "model": self.model}


class Group:
    """The processes that run a mesh; here the only one. A port has its own, with the same names."""

    rank, size = 0, 1

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process; every process must ask."""
        return flag

    def barrier(self) -> None:
        """Waits until every process is here."""


def check(config: Config, mesh: Mesh) -> None:
    """Raises ValueError listing every axis that `model` must divide and does not.

    Groups may also be fewer: each then lies on several devices, as many on each. The vocabulary
    need not divide: its last part is shorter (`chunks`).
    """
    sizes, parts = config.sizes, mesh.model
    problems = [
        f"{what} must be a multiple of the mesh's model axis; "
        f"got {letter}={sizes[letter]}, model={parts}"
        for letter, what in (("h", "heads"), ("f", "the feed-forward width"))
        if sizes[letter] % parts
    ]
    if sizes["g"] % parts and parts % sizes["g"]:
        problems.append(
            "key and value heads must be a multiple of the mesh's model axis, or divide it; "
            f"got g={sizes['g']}, model={parts}"
        )
    if problems:
        raise ValueError("; ".join(problems))


def spread(config: Config, mesh: Mesh) -> Config:
    """The config of the same function in which every part of a layer has groups of its own: fewer
    groups than parts stand several times each (`repeated`), as decoding keeps their keys.

    Raises ValueError as `check`.
    """
    check(config, mesh)
    return config.replace(key_value_heads=max(config.key_value_heads, mesh.model))


def repeated(array: Array, letters: str, groups: int) -> Array:
    """A parameter with `groups` groups: each of its own stands equally often, beside its copies."""
    if "g" not in (axes := letters.split()) or array.shape[axes.index("g")] == groups:
        return array
    axis = axes.index("g")
    return np.repeat(array, groups // array.shape[axis], axis)


def splits(config: Config, mesh: Mesh, component: str = "transformer") -> dict[str, Split]:
    """What every parameter of a component is split over, by canonical name: a place for each of its
    axes, as in `jax.sharding.PartitionSpec`.

    `query.kernel`, `d h k`: `("data", "model", None)`. `model` splits the axes `OVER_MODEL`; groups
    that it does not divide stay whole. `data` splits d, or else the first axis whose part it
    divides, behind `model` if that splits it too; a parameter without one stays whole. Raises
    ValueError as `check`.
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
    """Into how many parts such a parameter is split; the other devices hold copies."""
    axes = [axis for place in split for axis in (place if isinstance(place, tuple) else (place,))]
    return math.prod(mesh.sizes[axis] for axis in axes if axis)


def chunks(size: int, parts: int) -> list[slice]:
    """The part of an axis that each of several devices has: equal ones of `ceil(size / parts)`, of
    which the last may be shorter, or empty.
    """
    most = -(-size // parts)
    return [slice(min(i * most, size), min((i + 1) * most, size)) for i in range(parts)]
