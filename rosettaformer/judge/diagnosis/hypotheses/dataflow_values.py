"""The values of a run of the reference, by the part of the model that they occur in."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy.normalization import layer_norm

from ...expectation import calls
from ...expectation.patching import patched, signature
from ...expectation.paths import Paths, watched


def relative(path: str, parent: str) -> str:
    """The path of a part within its parent."""
    return path.removeprefix(f"{parent}.") if parent else path


def general(name: str) -> str:
    """A path with `*` for the layer index."""
    return re.sub(r"\blayers\.\d+", "layers.*", name)


class Values:
    """The values of a run so far, by the path of the surrounding component and label."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._values: dict[str, dict[str, Any]] = {}
        self._trees: dict[str, Mapping[str, Any]] = {}
        self._epsilons: dict[str, float] = {}

    def begin(self, given: Mapping[str, Any]) -> tuple[str, str, str, dict[str, Any]]:
        """Starts a call; returns its path, its parent's path and kind, and the values there."""
        (path, component), *rest = self.paths.around()
        parent, kind = rest[0] if rest else ("", "")
        around = self._values.setdefault(parent if rest else "\0", {})
        self._values[path] = {f"the {component}'s {name}": value for name, value in arrays_of(given)}
        self._trees[path] = given.get("parameters") or {}
        if epsilon := getattr(given.get("config"), "epsilon", given.get("epsilon")):
            self._epsilons[path] = epsilon
        return path, parent, kind, dict(around)

    def end(self, path: str, parent: str, kind: str, given: Mapping[str, Any], output: Any) -> None:
        """Ends a call."""
        if not kind:
            return
        child, around = relative(path, parent), self._values[parent]
        if child.endswith("dropout"):  # the residual adds the sub-layer's output after dropout
            around[f"the output of {child.removesuffix('_dropout')}"] = output
            return
        arrays = list(arrays_of(given))
        for name, value in arrays:
            around.setdefault(f"what {child} is given" + f" as {name}" * (len(arrays) > 1), value)
        around[f"the output of {child}"] = output
        if re.fullmatch(r"(en|de)coder\.layers\.\d+", path) and parent:  # a stack may return a layer's output too early
            self._values.setdefault("", {})[f"the output of {path}"] = output

    def within(self, path: str) -> dict[str, Any]:
        """The values so far in the component at a path."""
        return dict(self._values.get(path, {}))

    def normed(self, parent: str, norm: str, x: np.ndarray) -> np.ndarray:
        """x normalized by the norm of this name in a component."""
        return layer_norm(self.siblings(parent)[norm], x, self._epsilons[parent])

    def siblings(self, parent: str) -> dict[str, Any]:
        """The parameters of the parts of a component, by relative path."""
        return dict(_subtrees(self._trees.get(parent, {})))


def _subtrees(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            own = f"{path}.{name}" if path else name
            yield own, value
            if name == "layers":
                yield from _subtrees(value, own)


def arrays_of(given: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """The array arguments."""
    return ((name, value) for name, value in given.items() if isinstance(value, np.ndarray))


def first_of(result: Any) -> Any:
    """The output, or the first of a pair."""
    return result[0] if isinstance(result, tuple) else result


def passed_on(given: Mapping[str, Any], output: Any) -> str:
    """The first argument with the output's kind and shape."""
    return next((name for name, value in arrays_of(given) if alike(value, output)), "")


def alike(first: Any, second: Any) -> bool:
    """Whether two arrays have equal shapes and kinds of numbers."""
    arrays = isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    return arrays and first.shape == second.shape and first.dtype.kind == second.dtype.kind


def observed(call: Callable[[Callable, dict[str, Any]], Any]) -> contextlib.AbstractContextManager[None]:
    """Makes the reference call components through `call`, with arguments by name."""

    def with_names(component: str, function: Callable, *args: Any, **options: Any) -> Any:
        given = signature(function).bind(*args, **options).arguments
        return call(lambda **changed: function(**calls.folded(given, changed)), calls.unfolded(given))

    return watched(with_names, scopes=False)


def summing(residual: Callable[[str, np.ndarray], np.ndarray]) -> contextlib.AbstractContextManager[None]:
    """Makes the reference add `residual(name, x)` instead of x to a sub-layer's output."""

    def residual_out(original: Callable, parameters: Any, config: Any, name: str, x_btd: np.ndarray, *rest: Any) -> np.ndarray:
        return original(parameters, config, name, residual(name, x_btd), *rest)

    return patched({"layers.residual_out": residual_out})
