"""Tracks the canonical path of every component call in a run of the reference.

A component with parameters is identified by its subtree of the nested parameters, one without by
the enclosing call.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reference_numpy import TransformerConfig

from ..stored import branches
from . import components
from .patching import patched

SCOPES = {"encode": ("source_embedding", "encoder"), "decode": ("target_embedding", "decoder")}  # parts of a path, but not components
LAST = "last"  # name of a stack's last layer
KINDS = ("local", "global", "rotating", "unrotated", "experts", "dense")  # names of layers by kind
_SUBLAYERS = ("multi_head_attention", "feed_forward")


@dataclass(frozen=True)
class _Frame:
    path: str
    component: str


class Paths:
    """The running calls, by canonical path, such as `encoder.layers.0.self_attention`.

    The outermost component has an empty path. layers: the names of the layers of every stack, by
    its path: `last`, and kinds that some layers have and others do not.
    """

    def __init__(self) -> None:
        self.layers: dict[str, tuple[tuple[str, ...], ...]] = {}
        self._frames: list[_Frame] = []  # including scopes
        self._subtrees: dict[int, str] = {}  # id of a subtree of the parameters -> its path
        self._taken: set[str] = set()
        self.rotations: dict[int, dict[str, Any]] = {}  # layer and positions of a rotation, by its id
        self._kept: list[Any] = []  # rotations, kept alive so that their ids stay unique
        self._sublayer = ""  # the path of the last finished sub-layer

    @property
    def current(self) -> str:
        """The path of the innermost running call; for a scope the path of its stack."""
        return self._frames[-1].path if self._frames else ""

    @property
    def parent(self) -> str | None:
        """The path of the innermost running component, without scopes; None if none is running."""
        return next((path for path, _ in self.around()), None)

    def around(self) -> list[tuple[str, str]]:
        """Returns path and name of every running component, innermost first, without scopes."""
        return [(frame.path, frame.component) for frame in reversed(self._frames) if frame.component not in SCOPES]

    def run(self, component: str, function: Callable, args: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[str, Any]:
        """Calls the function of a component or a scope; returns its path and its result."""
        tree = options.get("parameters", args[0] if args and isinstance(args[0], Mapping) else None)
        if not self._frames:
            self._taken = set()
            config = next((one for one in (*args, *options.values()) if isinstance(one, TransformerConfig)), None)
            self._index(tree or {}, "", config)
        path = SCOPES[component][1] if component in SCOPES else self._path(component, tree)
        self._frames.append(_Frame(path, component))
        result = function(*args, **options)
        self._frames.pop()
        if component in _SUBLAYERS:
            self._sublayer = path
        return path, result

    def rotated(self, original: Callable, config: Any, index: int, x_btd: Any, position_bt: Any = None) -> Any:
        """Calls `stacks.rotation` inside its layer, and records the rotation's layer."""
        path = joined(self.current, f"layers.{index}.self_attention") if self.current in self.layers else self.current
        self._frames.append(_Frame(path, "stacks.rotation"))
        rotation = original(config, index, x_btd, position_bt)
        self._frames.pop()
        if rotation is not None:
            self._kept.append(rotation)
            self.rotations[id(rotation)] = {"layer": index, "position_bt": position_bt}
        return rotation

    def followed(self) -> contextlib.AbstractContextManager[None]:
        """Follows runs of the reference inside the context."""
        return watched(lambda component, function, *args, **options: self.run(component, function, args, options)[1], rotated=self.rotated)

    def _index(self, tree: Mapping[str, Any], path: str, config: TransformerConfig | None) -> None:
        self._subtrees[id(tree)] = path
        for name, branch in branches(tree).items():
            if name == "layers":
                self.layers[path] = tuple(_names(config, len(branch)))
            self._index(branch, joined(path, name), config)

    def _path(self, component: str, tree: Mapping[str, Any] | None) -> str:
        if not self._frames:
            return ""
        wanted = self._wanted_path(component, tree)
        path, count = wanted, 2
        while path in self._taken:
            path, count = f"{wanted}_{count}", count + 1
        self._taken.add(path)
        return path

    def _wanted_path(self, component: str, tree: Mapping[str, Any] | None) -> str:
        frame = self._frames[-1]
        if component == "embedding" and frame.component in SCOPES:  # both sides may share one subtree
            return SCOPES[frame.component][0]
        if component == "logits":  # its parameters are a copy with the tied kernel
            return joined("" if frame.component in SCOPES else frame.path, component)
        if component == "dropout":
            return self._site(frame)
        if tree is not None and (path := self._subtrees.get(id(tree))):  # an inner call with all parameters is not the whole
            return path
        return joined(frame.path, component)

    def _site(self, frame: _Frame) -> str:
        """Returns the canonical name of the dropout applied in this call."""
        if frame.component == "scaled_dot_product_attention":
            return joined(frame.path.rpartition(".")[0], "weights_dropout")
        if frame.component in SCOPES:
            return joined(frame.path, "embedding_dropout")
        if frame.component == "classifier":
            return f"{frame.path or frame.component}_dropout"
        if frame.component == "feed_forward":
            return joined(frame.path, "hidden_dropout")
        return f"{self._sublayer}_dropout"


def _names(config: TransformerConfig | None, count: int) -> Iterator[tuple[str, ...]]:
    """Yields the names of each layer of a stack."""
    kinds = [set(_kinds(config, index)) if config else set[str]() for index in range(count)]
    for index, own in enumerate(kinds):
        divides = (kind for kind in KINDS if kind in own and any(kind not in other for other in kinds))
        yield *divides, *((LAST,) if index == count - 1 else ())


def _kinds(config: TransformerConfig, index: int) -> tuple[str, str, str]:
    kind = config.layer_kind(index)
    return (
        "local" if kind.window else "global",
        "rotating" if kind.rotary else "unrotated",
        "experts" if config.has_experts(index) else "dense",
    )


def watched(
    call: Callable[..., Any], scopes: bool = True, rotated: Callable[..., Any] | None = None
) -> contextlib.AbstractContextManager[None]:
    """Makes the reference call the functions of its components, and of scopes, as `call(component,
    function, *args, **options)`.

    rotated: as `Paths.rotated`.
    """
    modules = {name: one.module for name, one in components.FORWARD.items()} | (dict.fromkeys(SCOPES, "transformer") if scopes else {})
    replaces: dict[str, Callable[..., Any]] = {f"{module}.{name}": functools.partial(call, name) for name, module in modules.items()}
    return patched(replaces | ({"stacks.rotation": rotated} if rotated else {}))


def joined(path: str, name: str) -> str:
    """Returns the path of a part inside the component at a path."""
    return f"{path}.{name}" if path else name
