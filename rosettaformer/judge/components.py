"""The declarations of all components, read from `components.toml` in the order of reports."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from reference_numpy.suggestions import known

# layout: another split of a model into modules, asked only if a port defines it.
# search: decoding with choices. mesh: only for ports on a mesh. file: only for exported files.
KINDS = ("part", "layout", "decoding", "search", "training", "mesh", "file")
OTHERS = ("layout", "mesh", "file")  # kinds that the four packages do not define and the guide does not describe
_WHOLE = {"module": "rosettaformer.judge.expectation.training", "model": "transformer"}
# the values that a component has by its kind, unless it declares others
DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "layout": {"module": "rosettaformer.judge.expectation.layouts"}, "decoding": {"group": "Decoding"}, "search": {"group": "Decoding"},
    "training": {"group": "Training"}, "mesh": _WHOLE, "file": _WHOLE,
}  # fmt: skip
# the groups of the guide's index, in order
GROUPS = (
    "Tokens", "Positions", "Masks", "Attention", "Parts of a layer", "Layers and stacks", "Heads", "Whole models", "Decoding", "Training",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Component:
    """The declaration of a component. Raises ValueError on an unknown kind or group, and if its
    guide page lacks something.

    module: the module with the function of the same name, in `reference_numpy` or by its full name.
    arguments: the function's arguments that are config fields or the dtype. model: the component
    whose parameters it takes, if it has none of its own. class_name: the name of its class in the
    ports. core: the names of its cases in a quick check.

    For its page in the guide: group, purpose; first: whether it comes first in its group, which is
    otherwise in the order of reports. plain: its plain functions, unless it is the one of the same
    name. without_plain: why it has none. plain_note: a note on them. elsewhere: by framework, the
    equivalent in a library on top of it, if the framework itself has none.
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
            raise ValueError(f"{self.name} (kind {self.kind}) must have a purpose if, and only if, the guide has a page on it")
        if self.plain and self.without_plain:
            raise ValueError(f"{self.name} has both plain functions and a reason for having none; remove one")

    @property
    def own(self) -> bool:
        """Whether the four packages define it."""
        return self.kind not in OTHERS


def read(text: str) -> dict[str, Component]:
    """Returns a TOML document's components. Raises ValueError; TypeError on unknown keys."""
    return {name: _component(name, row) for name, row in tomllib.loads(text).items()}


def _component(name: str, row: Mapping[str, Any]) -> Component:
    values: dict[str, Any] = {"class_name": "".join(part.capitalize() for part in name.split("_"))}
    values |= DEFAULTS.get(row.get("kind", "part"), {})
    values |= {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Component(name=name, **values)


DECLARED: Mapping[str, Component] = read((resources.files(__package__) / "components.toml").read_text(encoding="utf-8"))
