"""A known bug of sharded ports: changed operations of a mesh's devices."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from reference_numpy.sharding import Mesh

from ...expectation.mesh import OPERATIONS, Operations

Replaces = Mapping[str, Callable]  # operation -> the altered one, whose first argument is the original
Altered = Mapping[str, Replaces]  # by id
Variants = Mapping[str, Mapping[str, Replaces]]  # by id and the variant's title
# operations whose second argument is the path of a sub-layer or the name of a parameter
PLACED = (
    "output", "output_gradient", "input_gradient", "bias_gradient", "shared_gradient", "whole_gradient", "norm_gradient", "data_gradient",
)  # fmt: skip
# operations that leave the devices' copies of an array different, or that split logits depend on
LAID_OUT = {"output", "input_gradient", "whole_gradient"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Fault:
    """A known bug of sharded ports.

    what: what is computed instead. shows: the symptoms, and on which mesh. fix: the correct code
    per framework. evidence: where it was reported. axis: the mesh axis it needs; empty for either.
    replaces: the changed operations. variants: other forms of the bug, by title. place: the only
    place it applies to (a sub-layer's path or kind, or names of norms); empty for everywhere.
    whole: the tables that `model` does not split, as in `Device`.
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
        """The bug itself, then each variant under its own title."""
        others = [dataclasses.replace(self, title=title, replaces=replaces, variants={}) for title, replaces in self.variants.items()]
        return [dataclasses.replace(self, variants={}), *others]

    @property
    def laid_out(self) -> bool:
        """Whether its effect differs for tables that `model` does not split."""
        return self.axis == "model" and bool(self.replaces.keys() & LAID_OUT)

    @property
    def placed(self) -> bool:
        """Whether it can be limited to one place."""
        return all(name in PLACED for name in self.replaces)

    def on(self, mesh: Mesh) -> Mesh:
        """Returns the smallest mesh on which the bug shows as it does on this mesh."""
        if not self.axis:
            return mesh
        return Mesh(data=mesh.data) if self.axis == "data" else Mesh(model=mesh.model)

    @property
    def operations(self) -> Operations:
        """The operations of a run with the bug."""
        altered = {name: self._altered(name, altered) for name, altered in self.replaces.items()}
        return Operations(**vars(OPERATIONS) | altered)

    @property
    def name(self) -> str:
        """The id, the title and the place."""
        return f"{self.id} ({self.title})" + (f" only in {self.place}" if self.place else "")

    def _altered(self, name: str, altered: Callable) -> Callable:
        original = getattr(OPERATIONS, name)
        changed = functools.partial(altered, original)
        if not self.place:
            return changed
        return lambda device, where, *rest: (changed if at(self.place, where) else original)(device, where, *rest)


def at(place: str, where: str) -> bool:
    """Returns whether a path or name is at a place: a path, its last part, or several of them."""
    return any(where.startswith(f"{one}.") or f".{where}.".find(f".{one}.") >= 0 for one in place.split(" and "))
