"""A fault of a sharded port: other operations of the devices of a mesh, at one place or everywhere."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from reference_numpy.sharding import Mesh

from ...expectation.mesh import OPERATIONS, Operations

Replaces = Mapping[str, Callable]  # an operation -> the altered one, which takes the operation that it replaces first
Altered = Mapping[str, Replaces]  # by the fault's id
Variants = Mapping[str, Mapping[str, Replaces]]  # by the fault's id and the variant's title
# the operations that know where they are: their second argument is the path of a sub-layer, or the name of a parameter
PLACED = (
    "output", "output_gradient", "input_gradient", "bias_gradient", "shared_gradient", "whole_gradient", "norm_gradient", "data_gradient",
)  # fmt: skip
# the operations that leave the devices' copies of an array different, or that logits need where they are split
LAID_OUT = {"output", "input_gradient", "whole_gradient"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Fault:
    """What sharded ports were seen to do.

    what: what is computed instead. shows: how it shows, and on which mesh. fix: what is right, by framework. evidence: where it was made.
    axis: along which axis of a mesh alone it is made; empty for both. replaces: the operations that are others. variants: the same as
    others do it, by title. place: where alone it is, a sub-layer's path or kind, or the names of norms; everywhere if empty. whole: the
    tables that `model` does not split, as in `Device`.
    """

    id: str
    title: str
    what: str
    shows: str
    fix: Mapping[str, str]
    evidence: str
    axis: str
    replaces: Replaces
    variants: Mapping[str, Replaces] = field(default_factory=dict)
    place: str = ""
    whole: tuple[str, ...] = ()

    @property
    def hypotheses(self) -> list["Fault"]:
        """The fault itself, then each of its variants under its own title."""
        others = [dataclasses.replace(self, title=title, replaces=replaces, variants={}) for title, replaces in self.variants.items()]
        return [dataclasses.replace(self, variants={}), *others]

    @property
    def laid_out(self) -> bool:
        """Whether it does something else where tables are whole over `model`."""
        return self.axis == "model" and bool(self.replaces.keys() & LAID_OUT)

    @property
    def placed(self) -> bool:
        """Whether it can be at one place alone."""
        return all(name in PLACED for name in self.replaces)

    def on(self, mesh: Mesh) -> Mesh:
        """The smallest mesh that shows what it does on a mesh."""
        if not self.axis:
            return mesh
        return Mesh(data=mesh.data) if self.axis == "data" else Mesh(model=mesh.model)

    @property
    def operations(self) -> Operations:
        """The operations of a run with the fault in it."""
        altered = {name: self._altered(name, altered) for name, altered in self.replaces.items()}
        return Operations(**vars(OPERATIONS) | altered)

    @property
    def name(self) -> str:
        """The id and the title, and where it is."""
        return f"{self.id} ({self.title})" + (f" in {self.place} alone" if self.place else "")

    def _altered(self, name: str, altered: Callable) -> Callable:
        original = getattr(OPERATIONS, name)
        changed = functools.partial(altered, original)
        if not self.place:
            return changed
        return lambda device, where, *rest: (changed if at(self.place, where) else original)(device, where, *rest)


def at(place: str, where: str) -> bool:
    """Whether a path or a parameter's name lies at a place: a path, or the last part of one, or several with " and " between them."""
    return any(where.startswith(f"{one}.") or f".{where}.".find(f".{one}.") >= 0 for one in place.split(" and "))
