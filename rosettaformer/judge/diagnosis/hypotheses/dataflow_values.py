"""The values of a run of the reference, by the part of the model within which they are, and what is called there."""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy.normalization import layer_norm

from ...expectation import calls
from ...expectation.patching import patched
from ...expectation.paths import Paths, watched


def relative(path: str, parent: str) -> str:
    """The path of a part within its parent."""
    return path.removeprefix(f"{parent}.") if parent else path


def general(name: str) -> str:
    """A path with `*` for the number of a layer."""
    return re.sub(r"\blayers\.\d+", "layers.*", name)


class Values:
    """The values of a run so far, by the path of the component within which they are and by their label there."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._values: dict[str, dict[str, Any]] = {}
        self._trees: dict[str, Mapping[str, Any]] = {}
        self._epsilons: dict[str, float] = {}

    def begin(self, given: Mapping[str, Any]) -> tuple[str, str, str, dict[str, Any]]:
        """A call begins: its path, that of what it stands in and that one's component, and the values that there are."""
        (path, component), *rest = self.paths.around()
        parent, kind = rest[0] if rest else ("", "")
        around = self._values.setdefault(parent if rest else "\0", {})
        self._values[path] = {f"the {component}'s {name}": value for name, value in arrays_of(given)}
        self._trees[path] = given.get("parameters") or {}
        if epsilon := getattr(given.get("config"), "epsilon", given.get("epsilon")):
            self._epsilons[path] = epsilon
        return path, parent, kind, dict(around)

    def end(self, path: str, parent: str, kind: str, given: Mapping[str, Any], output: Any) -> None:
        """A call ends."""
        if not kind:
            return
        child, around = relative(path, parent), self._values[parent]
        if child.endswith("dropout"):  # of a sub-layer what is added is the dropped output; without dropout it is the same
            around[f"the output of {child.removesuffix('_dropout')}"] = output
            return
        arrays = list(arrays_of(given))
        for name, value in arrays:
            around.setdefault(f"what {child} is given" + f" as {name}" * (len(arrays) > 1), value)
        around[f"the output of {child}"] = output
        if re.fullmatch(r"(en|de)coder\.layers\.\d+", path) and parent:  # what leaves a stack, perhaps too early
            self._values.setdefault("", {})[f"the output of {path}"] = output

    def within(self, path: str) -> dict[str, Any]:
        """The values so far in the component of a path."""
        return dict(self._values.get(path, {}))

    def normed(self, parent: str, norm: str, x: np.ndarray) -> np.ndarray:
        """x through the norm of this name in a component."""
        return layer_norm(self.siblings(parent)[norm], x, self._epsilons[parent])

    def siblings(self, parent: str) -> dict[str, Any]:
        """The parameters of what stands in a component, by relative path."""
        return dict(_subtrees(self._trees.get(parent, {})))


def _subtrees(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            own = f"{path}.{name}" if path else name
            yield own, value
            if name == "layers":
                yield from _subtrees(value, own)


def arrays_of(given: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """The arguments that are arrays."""
    return ((name, value) for name, value in given.items() if isinstance(value, np.ndarray))


def first_of(result: Any) -> Any:
    """The output; of a pair the first."""
    return result[0] if isinstance(result, tuple) else result


def passed_on(given: Mapping[str, Any], output: Any) -> str:
    """The first argument that has the kind and the shape of the output."""
    return next((name for name, value in arrays_of(given) if alike(value, output)), "")


def alike(first: Any, second: Any) -> bool:
    """Whether two arrays have one shape and are the same kind of number."""
    arrays = isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    return arrays and first.shape == second.shape and first.dtype.kind == second.dtype.kind


def observed(call: Callable[[Callable, dict[str, Any]], Any]) -> contextlib.AbstractContextManager[None]:
    """A run of the reference in which every component's function is called by `call`, with its arguments by name."""

    def with_names(component: str, function: Callable, *args: Any, **options: Any) -> Any:
        given = inspect.signature(function).bind(*args, **options).arguments
        return call(lambda **changed: function(**calls.folded(given, changed)), calls.unfolded(given))

    return watched(with_names, scopes=False)


def summing(residual: Callable[[str, np.ndarray], np.ndarray]) -> contextlib.AbstractContextManager[None]:
    """A run of the reference in which `residual(name, x)` is added to the output of the sub-layer of that name, in place of x."""

    def residual_out(original: Callable, parameters: Any, config: Any, name: str, x_btd: np.ndarray, *rest: Any) -> np.ndarray:
        return original(parameters, config, name, residual(name, x_btd), *rest)

    return patched({"layers.residual_out": residual_out})
