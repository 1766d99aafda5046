"""What is planned: a training step on a mesh, and each parameter's part on a device.

Where the engines of the ports differ is read from their traces and compiled programs.
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
ITEMS = {"float64": 8, "float32": 4, "bfloat16": 2}  # bytes of a number

_Count = Annotated[int, integer(1)]


class Engine(NamedTuple):
    """What an engine does; what is not said here is the same for all.

    uneven: along data it splits what the declaration leaves whole, too, in parts of the first axis of its own layout, the last shorter.
    each_use: it adds up a sum for each kernel that reads an input, and for each use of a table, where one sum of them all would do.
    sums_at_end: gradients are added up once, after the last microbatch; they stay whole along data.
    skips_added: the backward pass gathers no bias and no offset, whose values no gradient needs, unless it computes again
    what comes behind it in its layer.
    repeats_dropped: recomputation repeats the last sum of a layer if dropout follows it.
    asks_for_each: data parallelism adds up, too, which parameters have a gradient, and an empty one that never has.
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
    # XLA for CPUs; those of GPUs and TPUs join the sums of `each_use`
    "jax": Engine(uneven=False, each_use=True, sums_at_end=False, skips_added=True, repeats_dropped=False, asks_for_each=False),
}


class Parameter(NamedTuple):
    """A canonical parameter. split: the axes of the mesh that split each of its axes."""

    name: str
    letters: tuple[str, ...]
    shape: tuple[int, ...]
    split: tuple[tuple[str, ...], ...]

    def letter(self, axis: str) -> str:
        """Returns which of its axes this axis of the mesh splits, "" if none."""
        return next((letter for letter, places in zip(self.letters, self.split, strict=True) if axis in places), "")

    def numbers(self, mesh: Mesh, *over: str) -> int:
        """Returns how many numbers the largest part has, split over these axes of the mesh alone."""
        return math.prod(self._sizes(mesh, over))

    def uneven(self, mesh: Mesh) -> int:
        """Returns how many numbers the largest part has if data splits the first axis of torch's layout, which model may split too: a
        kernel's outputs, a table's rows, and all of a vector.
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
        """Returns the module that has it, such as `decoder.layers.0.self_attention.query`."""
        return self.name.rpartition(".")[0]

    @property
    def part(self) -> str:
        """Returns the part of a layer that has it, such as `decoder.layers.0.self_attention`."""
        return self.projection.rpartition(".")[0]

    @property
    def layer(self) -> str:
        """Returns its layer, such as `decoder.layers.0`, or "" outside of layers."""
        stack, layers, rest = self.name.partition(".layers.")
        return stack + layers + rest.partition(".")[0] if layers else ""


@dataclass(frozen=True, kw_only=True)
class Step(Fields):
    """A training step. Raises ValueError naming every field that is out of range, as `sharding.check`, and if no loss reaches the model.

    rows: of the whole batch. source, target: the tokens of a row that encoder and decoder compute; those of a stack that the config lacks
    are 0.
    """

    KIND: ClassVar[str] = "step"

    config: Annotated[TransformerConfig, Rule(lambda value: isinstance(value, TransformerConfig), "a TransformerConfig")]
    mesh: Annotated[Mesh, Rule(lambda value: isinstance(value, Mesh), "a Mesh")]
    rows: _Count
    source: Annotated[int, at_least(0)]
    target: Annotated[int, at_least(0)]
    dtype: Annotated[str, one_of(tuple(ITEMS))]  # of parameters, gradients, moments and activations
    recompute: Annotated[bool, BOOLEAN]  # a layer's activations in the backward pass
    backend: Annotated[str, one_of(tuple(ENGINES))]
    recipe: Annotated[Recipe, Rule(lambda value: isinstance(value, Recipe), "a Recipe")]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.config.need_objective()
        for side, layers in (("source", self.config.encoder_layers), ("target", self.config.decoder_layers)):
            if not layers:
                object.__setattr__(self, side, 0)
            elif not getattr(self, side):
                raise ValueError(f"{side} must be at least 1 where there are layers; got 0")
        if self.rows % self.recipe.microbatches:
            raise ValueError(f"the batch must divide into {self.recipe.microbatches} microbatches; got {self.rows} rows")
        sharding.check(self.config, self.mesh)

    @property
    def item(self) -> int:
        """Returns the bytes of a number."""
        return ITEMS[self.dtype]

    @property
    def engine(self) -> Engine:
        """Returns what the backend's engine does."""
        return ENGINES[self.backend]

    @property
    def part_rows(self) -> int:
        """Returns the most rows that a device has of a microbatch."""
        return -(-(self.rows // self.recipe.microbatches) // self.mesh.data)

    def tokens(self, side: str) -> int:
        """Returns the most tokens of source or target that a device has of a microbatch."""
        return self.part_rows * int(getattr(self, side))

    def is_split(self, parameter: Parameter) -> bool:
        """Whether a parameter is split along data."""
        anyway = self.engine.uneven and self.mesh.data > 1 and not self.mesh.replicate
        return anyway or bool(parameter.letter(DATA))

    def own(self, parameter: Parameter) -> int:
        """Returns the numbers of a parameter on the device that has most of it."""
        uneven = self.is_split(parameter) and not parameter.letter(DATA)
        return parameter.uneven(self.mesh) if uneven else parameter.numbers(self.mesh, DATA, MODEL)

    def gathered(self, parameter: Parameter) -> int:
        """Returns the numbers of a parameter that is brought together along data, with those that fill the last part."""
        return self.own(parameter) * self.mesh.data if self.is_split(parameter) else parameter.numbers(self.mesh, MODEL)

    def parameters(self) -> Iterator[Parameter]:
        """Yields every parameter, in the order of the forward pass."""
        letters, shapes = parameters.axes(self.config), parameters.shapes(self.config)
        for name, split in sharding.splits(self.config, self.mesh).items():
            places = tuple(place if isinstance(place, tuple) else (place,) if place else () for place in split)
            yield Parameter(name, tuple(letters[name].split()), shapes[name], places)
