"""What the adapters share to trace a model: the record of a model's run, and the exchange of a component's inputs."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from ..messages import Force
from ..port import NotCovered, Unsupported
from . import matching

__all__ = ["Call", "Force", "Recorder", "Tensors", "intercepted"]


_ANY = inspect.signature(lambda *args, **kwargs: None)


@dataclass(frozen=True)
class Call:
    """A call of a forced module. leaves: the tensors that it was forced with, by the index of the reference's input."""

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: dict[int, Any]


@dataclass(frozen=True)
class Tensors:
    """What the record needs of a framework.

    like: the array as a tensor of the other's dtype, on its device. leaf: the tensor, as one whose gradient can be asked for.
    signature: that of a module's call.
    gradients: of the sum of cotangent * output of a call: with respect to its leaves by index, and to the parameters by canonical name.
    """

    is_tensor: Callable[[Any], bool]
    to_numpy: Callable[[Any], np.ndarray]
    like: Callable[[np.ndarray, Any], Any]
    leaf: Callable[[Any], Any]
    signature: Callable[[Any], inspect.Signature]
    gradients: Callable[[Call, Any, np.ndarray], dict[str, dict[Any, np.ndarray]]]


class _Enough(BaseException):
    """The run has shown what it is for: it ends, past every handler of exceptions that the model may have."""


class Recorder:
    """Records the calls of a model's submodules by canonical path; or gives one of them other inputs, and ends the run with its output.

    modules: as `submodules` finds them. One that stands for several components (shared embeddings) is each of them in turn.
    `activations` holds for each path that was reached: inputs, the numeric arrays given; output; gradients where they were asked for; where
    something failed, error or refused.
    """

    def __init__(
        self,
        modules: Mapping[str, Any],
        tensors: Tensors,
        force: Force | None,
        positions: Mapping[str, np.ndarray],
        arguments: Mapping[str, Sequence[str]],
    ) -> None:
        """positions: those that the reference encodes, by the path of a module that adds 0, 1, 2, ... to what it is given. arguments: of a
        module, by path, those that are known to be inputs, in the order of the reference's."""
        self.activations: dict[str, dict[str, Any]] = {}
        self.modules = list({id(module): module for module in modules.values()}.values())
        self._tensors, self._force, self._positions, self._arguments = tensors, force, positions, arguments
        self._waiting: dict[int, list[str]] = {id(module): [] for module in self.modules}
        self._open: list[tuple[int, str]] = []
        self._call: Call | None = None
        self._added: set[str] = set()  # modules that added the positions to something else than zeros
        for path, module in modules.items():
            self._waiting[id(module)].append(path)

    def run(self, root: Any, function: Callable[..., Any], inputs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Calls the model and returns the activations: none where it has no component to be forced.

        An exception is the error of every component that had begun and not finished.
        """
        if self._force is not None and self._force.path and not any(self._force.path in paths for paths in self._waiting.values()):
            return self.activations
        try:
            args, kwargs = self._begin(root, "", (), dict(inputs))
            self.leave(function(*args, **kwargs))
        except (NotCovered, Unsupported):
            raise
        except _Enough:
            pass
        except Exception as error:
            for _, path in self._open:
                self.activations[path]["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return self.activations

    def enter(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call begins: the arguments that it is to have."""
        return self._begin(module, self._waiting[id(module)].pop(0), args, kwargs)

    def leave(self, output: Any) -> None:
        """The call that began last ends."""
        path = self._open[-1][1]
        first = next((tensor for tensor in matching.leaves(output) if self._tensors.is_tensor(tensor)), None)
        if path not in self._added:
            self.activations[path]["output"] = None if first is None else self._tensors.to_numpy(first)
        if self._force is not None and path == self._force.path:
            if self._call is not None and self._force.cotangent is not None and first is not None:
                cotangent = matching.transposed(self._force.cotangent, tuple(first.shape))
                self.activations[path]["gradients"] = self._tensors.gradients(self._call, first, cotangent)
            raise _Enough
        self._open.pop()

    def awaits(self, module: Any) -> bool:
        """Whether the next call of the module is to be recorded; a call of its base class within its own is not another one."""
        return bool(self._waiting.get(id(module))) and id(module) not in (key for key, _ in self._open)

    def is_open(self, module: Any) -> bool:
        """Whether the call that ends is one that was recorded."""
        return bool(self._open) and self._open[-1][0] == id(module)

    def watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The `__call__` of a class, recorded for the instances that matter."""

        @functools.wraps(call)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.awaits(module):
                return call(module, *args, **kwargs)
            args, kwargs = self.enter(module, args, kwargs)
            output = call(module, *args, **kwargs)
            self.leave(output)
            return output

        return __call__

    def _begin(self, module: Any, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._open.append((id(module), path))
        self.activations[path] = {}
        if path in self._positions:
            return self._begin_positions(path, args, kwargs)
        given = self._bound(module, path, args, kwargs)
        if self._force is not None and path == self._force.path:
            given = self._forced(self._force, module, given)
        self.activations[path]["inputs"] = [array for _, array in self._numeric(given.arguments)]
        return given.args, given.kwargs

    def _bound(self, module: Any, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """The arguments of a call, those that are known to be inputs first and in the order of the reference's."""
        known = self._arguments.get(path, ())
        try:
            bound = (self._tensors.signature(module) if known else _ANY).bind(*args, **kwargs)
        except (TypeError, ValueError):
            bound = _ANY.bind(*args, **kwargs)
        order = [name for name in (*known, *bound.arguments) if name in bound.arguments]
        return inspect.BoundArguments(bound.signature, {name: bound.arguments[name] for name in order})

    def _begin_positions(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A module begins that adds positions 0, 1, 2, ... to its first argument: these count as its inputs. To force it is to give it
        zeros; its output is shown there alone, since what a dtype rounds off the sum would be more than the positions may miss."""
        wanted, numeric = self._positions[path], self._numeric((args, kwargs))
        tensor, given = next((pair for pair in numeric if pair[1].dtype.kind not in "iu"), (None, np.empty(0)))
        known = np.array(np.broadcast_to(np.arange(wanted.shape[1]), wanted.shape))
        fits = given.shape[:2] in (wanted.shape, wanted.shape[::-1])
        self.activations[path]["inputs"] = [known] if fits else [array for _, array in numeric]
        if self._force is None or path != self._force.path:
            self._added.add(path)
            return args, kwargs
        if not fits or not np.array_equal(known, self._force.inputs[0]):
            self.activations[path]["refused"] = "cannot be forced: the module knows no positions but 0, 1, 2, ... of what it is given"
            raise _Enough
        zeros = self._tensors.like(np.zeros_like(given), tensor)
        return matching.mapped((args, kwargs), lambda leaf: zeros if leaf is tensor else leaf)

    def _numeric(self, value: Any) -> list[tuple[Any, np.ndarray]]:
        pairs = [(leaf, self._tensors.to_numpy(leaf)) for leaf in matching.leaves(value) if self._tensors.is_tensor(leaf)]
        return [(tensor, array) for tensor, array in pairs if array.dtype.kind != "b"]

    def _forced(self, force: Force, module: Any, given: inspect.BoundArguments) -> inspect.BoundArguments:
        own = self._numeric(given.arguments)
        chosen = matching.assign([array for _, array in own], force.inputs)
        if chosen is None:
            wanted, came = (", ".join(str(x.shape) for x in arrays) for arrays in (force.inputs, [array for _, array in own]))
            refused = f"cannot be forced: the reference's inputs have shapes {wanted}; the module's {came or 'none'}"
            self.activations[force.path] = {"inputs": [array for _, array in own], "refused": refused}
            raise _Enough
        leaves: dict[int, Any] = {}
        replaced = []
        for (tensor, array), index in zip(own, chosen, strict=True):
            if index is None:
                replaced.append(tensor)
                continue
            same = next(i for i, other in enumerate(force.inputs) if np.array_equal(other, force.inputs[index]))
            if same not in leaves:
                leaves[same] = self._tensors.like(matching.transposed(force.inputs[same], array.shape), tensor)
                if force.cotangent is not None and array.dtype.kind not in "iu":
                    leaves[same] = self._tensors.leaf(leaves[same])
            replaced.append(leaves[same])
        tensors = iter(replaced)
        known = {id(tensor) for tensor, _ in own}
        new = matching.mapped(given.arguments, lambda leaf: next(tensors) if id(leaf) in known else leaf)
        given = inspect.BoundArguments(given.signature, new)
        self._call = Call(module, given.args, given.kwargs, leaves)
        return given


@contextlib.contextmanager
def intercepted(recorder: Recorder) -> Iterator[None]:
    """Watches the modules through the `__call__` of their classes: for frameworks that have no hooks."""
    with contextlib.ExitStack() as stack:
        for kind in dict.fromkeys(type(module) for module in recorder.modules):
            stack.enter_context(mock.patch.object(kind, "__call__", recorder.watched(kind.__call__)))
        yield
