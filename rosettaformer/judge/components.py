"""The components: `components.toml` has a table for each, in the order of reports, and every other place reads it here."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from reference_numpy.suggestions import known

# `layout`: a division of a model into other modules, which only ports that have it are asked. `search`: decoding whose answers depend on
# choices. `mesh`: what only a port on a mesh is asked besides. `file`: what only an exported file is asked besides.
KINDS = ("part", "layout", "decoding", "search", "training", "mesh", "file")
OTHERS = ("layout", "mesh", "file")  # kinds of components that the four packages do not define, and that the guide has no page of
# of the guide's index, in its order
GROUPS = (
    "Tokens", "Positions", "Masks", "Attention", "Parts of a layer", "Layers and stacks", "Heads", "Whole models", "Decoding", "Training",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Component:
    """What is declared of a component. Raises ValueError on an unknown kind or group, and where a page lacks something.

    module: where its function of the same name is, in `reference_numpy` or by a full name. arguments: those of the function that are
    fields of the config, or the dtype. model: the component whose parameters it takes, if it has none of its own.
    class_name: its class in the ports, if it is one. core: the names of its cases that a quick check asks.

    Of its page in the guide: group and purpose; first: whether it begins its group, whose order is otherwise that of reports.
    plain: its plain functions, if they are not the one of its name. without_plain: why it has none. plain_note: what to know of them.
    elsewhere: by framework, what a library on top of it has, if the framework itself has nothing.
    """

    name: str
    module: str
    kind: str = "part"
    arguments: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    class_name: str = ""
    differentiable: bool = False
    core: tuple[str, ...] = ()
    group: str = ""
    first: bool = False
    purpose: str = ""
    plain: tuple[str, ...] = ()
    without_plain: str = ""
    plain_note: str = ""
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known(f"kind of {self.name}", [self.kind], KINDS)
        known(f"group of {self.name}", [self.group], GROUPS if self.own else ("",))
        if bool(self.purpose) != self.own:
            raise ValueError(f"a component must have a purpose if the guide has a page of it; got {self.name}, kind {self.kind}")
        if self.plain and self.without_plain:
            raise ValueError(f"a component must have plain functions or a reason why it has none; got both for {self.name}")

    @property
    def own(self) -> bool:
        """Whether the four packages define it."""
        return self.kind not in OTHERS


def read(text: str) -> dict[str, Component]:
    """Returns the components of a TOML document by their names. Raises ValueError as `Component` does, TypeError on an unknown key."""
    return {name: _component(name, row) for name, row in tomllib.loads(text).items()}


def _component(name: str, row: Mapping[str, Any]) -> Component:
    values: dict[str, Any] = {"class_name": "".join(part.capitalize() for part in name.split("_"))}
    values |= {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Component(name=name, **values)


DECLARED: Mapping[str, Component] = read((resources.files(__package__) / "components.toml").read_text(encoding="utf-8"))
