"""Describes a training step on a mesh, and the part of each parameter on a device.

The differences between the ports' engines come from their traces and compiled programs.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from reference_numpy import TransformerConfig, parameters, sharding
from reference_numpy.fields import BOOLEAN, Fields, Rule, at_least, integer, one_of
from reference_numpy.recipe import Recipe
from reference_numpy.sharding import Mesh

DATA, MODEL = "data", "model"
ITEMS = {"float64": 8, "float32": 4, "bfloat16": 2}  # bytes per number

_Count = Annotated[int, integer(1)]


class Engine(NamedTuple):
    """The properties in which engines differ.

    uneven: along data, it also splits parameters that the declaration keeps whole, by the first
    axis of its own layout; the last part is shorter. each_use: it sums separately for each kernel
    that reads an input, and for each use of a table, where one sum would suffice. sums_at_end: it
    sums gradients once, after the last microbatch; until then they stay whole along data.
    skips_added: its backward pass gathers no biases and offsets, whose values no gradient needs,
    unless it recomputes what follows them in the layer. repeats_dropped: recomputation repeats the
    last sum of a layer if dropout follows it. asks_for_each: data parallelism also sums which
    parameters have a gradient, and an empty one that never has.
    """

    uneven: bool
    each_use: bool
    sums_at_end: bool
    skips_added: bool
    repeats_dropped: bool
    asks_for_each: bool


ENGINES = {
    # DDP, FSDP2 and DTensor
    "torch": Engine(uneven=True, each_use=False, sums_at_end=True, skips_added=False, repeats_dropped=True, asks_for_each=True),
    # XLA for CPUs; on GPUs and TPUs it merges the sums of `each_use`
    "jax": Engine(uneven=False, each_use=True, sums_at_end=False, skips_added=True, repeats_dropped=False, asks_for_each=False),
}


class Parameter(NamedTuple):
    """A canonical parameter. split: for each of its axes, the mesh axes that split it."""

    name: str
    letters: tuple[str, ...]
    shape: tuple[int, ...]
    split: tuple[tuple[str, ...], ...]

    def letter(self, axis: str) -> str:
        """Returns the axis that this axis of the mesh splits, or ""."""
        return next((letter for letter, places in zip(self.letters, self.split, strict=True) if axis in places), "")

    def numbers(self, mesh: Mesh, *over: str) -> int:
        """Returns the size of the largest part when split over these mesh axes."""
        return math.prod(self._sizes(mesh, over))

    def uneven(self, mesh: Mesh) -> int:
        """Returns the size of the largest part if data splits the first axis of torch's layout.

        That axis is a kernel's outputs, a table's rows, or all of a vector; model may split it too.
        """
        sizes, kind = self._sizes(mesh, (MODEL,)), self.name.rpartition(".")[2]
        outputs = sizes[1:] if self.letters[0] == "d" else sizes[-1:]
        first = math.prod({"kernel": outputs, "table": sizes[:1]}.get(kind, sizes))
        return -(-first // mesh.data) * (math.prod(sizes) // first)

    def _sizes(self, mesh: Mesh, over: Collection[str]) -> list[int]:
        parts = (math.prod(mesh.sizes[axis] for axis in places if axis in over) for places in self.split)
        return [-(-size // count) for size, count in zip(self.shape, parts, strict=True)]

    @property
    def projection(self) -> str:
        """The parameter's module, such as `decoder.layers.0.self_attention.query`."""
        return self.name.rpartition(".")[0]

    @property
    def part(self) -> str:
        """The parameter's part of a layer, such as `decoder.layers.0.self_attention`."""
        return self.projection.rpartition(".")[0]

    @property
    def layer(self) -> str:
        """The parameter's layer, such as `decoder.layers.0`, or "" outside of layers."""
        stack, layers, rest = self.name.partition(".layers.")
        return stack + layers + rest.partition(".")[0] if layers else ""


@dataclass(frozen=True, kw_only=True)
class Step(Fields):
    """A training step.

    rows: rows in the whole batch. source, target: tokens per row in encoder and decoder; 0 for a
    stack that the config lacks. Raises ValueError naming every field that is out of range, if
    `sharding.check` rejects the mesh, and if no loss reaches the model.
    """

    KIND: ClassVar[str] = "step"

    config: Annotated[TransformerConfig, Rule(lambda value: isinstance(value, TransformerConfig), "a TransformerConfig")]
    mesh: Annotated[Mesh, Rule(lambda value: isinstance(value, Mesh), "a Mesh")]
    rows: _Count
    source: Annotated[int, at_least(0)]
    target: Annotated[int, at_least(0)]
    dtype: Annotated[str, one_of(tuple(ITEMS))]  # of parameters, gradients, moments and activations
    recompute: Annotated[bool, BOOLEAN]  # whether the backward pass recomputes activations
    backend: Annotated[str, one_of(tuple(ENGINES))]
    recipe: Annotated[Recipe, Rule(lambda value: isinstance(value, Recipe), "a Recipe")]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.config.need_objective()
        for side, layers in (("source", self.config.encoder_layers), ("target", self.config.decoder_layers)):
            if not layers:
                object.__setattr__(self, side, 0)
            elif not getattr(self, side):
                raise ValueError(f"{side} must be at least 1 if the model has layers for it; got 0")
        if self.rows % self.recipe.microbatches:
            raise ValueError(f"the batch must divide into {self.recipe.microbatches} microbatches; got {self.rows} rows")
        sharding.check(self.config, self.mesh)
        self.recipe.router_weights(self.config, self.mesh if self.mesh.devices > 1 else None)

    @property
    def item(self) -> int:
        """The bytes per number."""
        return ITEMS[self.dtype]

    @property
    def engine(self) -> Engine:
        """The engine of the backend."""
        return ENGINES[self.backend]

    @property
    def part_rows(self) -> int:
        """The most rows of a microbatch on any device."""
        return -(-(self.rows // self.recipe.microbatches) // self.mesh.data)

    def tokens(self, side: str) -> int:
        """Returns the most source or target tokens of a microbatch on any device."""
        return self.part_rows * int(getattr(self, side))

    def is_split(self, parameter: Parameter) -> bool:
        """Whether data splits a parameter."""
        anyway = self.engine.uneven and self.mesh.data > 1 and not self.mesh.replicate
        return anyway or bool(parameter.letter(DATA))

    def own(self, parameter: Parameter) -> int:
        """Returns the size of a parameter's part on the device with the most of it."""
        uneven = self.is_split(parameter) and not parameter.letter(DATA)
        return parameter.uneven(self.mesh) if uneven else parameter.numbers(self.mesh, DATA, MODEL)

    def gathered(self, parameter: Parameter) -> int:
        """Returns the size of a parameter when gathered along data, including padding."""
        return self.own(parameter) * self.mesh.data if self.is_split(parameter) else parameter.numbers(self.mesh, MODEL)

    def parameters(self) -> Iterator[Parameter]:
        """Yields every parameter, in the order of the forward pass."""
        letters, shapes = parameters.axes(self.config), parameters.shapes(self.config)
        for name, split in sharding.splits(self.config, self.mesh).items():
            places = tuple(place if isinstance(place, tuple) else (place,) if place else () for place in split)
            yield Parameter(name, tuple(letters[name].split()), shapes[name], places)
