"""Records the inputs and outputs of a model's components, or forces the inputs of one."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ....common.modules.nests import leaves, mapped
from ....common.modules.recording import ModuleCall
from ....common.processes import words
from ..messages import Force
from ..port import NotCovered, Unsupported
from . import submodules


@dataclass(frozen=True)
class Pull:
    """How a framework computes the gradients of a call.

    leaf: returns a tensor as one whose gradient can be computed. gradients: returns the gradients
    of sum(cotangent * output) of a call, with respect to the forced tensors, by index of the
    reference's input, and to the parameters, by canonical name.
    """

    leaf: Callable[[Any], Any]
    gradients: Callable[[ModuleCall, dict[int, Any], Any, np.ndarray], dict[str, dict[Any, np.ndarray]]]


class _Enough(BaseException):
    """Ends a run that has recorded enough, past the model's own exception handlers."""


class Recorder:
    """Records submodules' calls by canonical path, or forces one and stops after its output.

    rows: the modules by canonical path, for `face.calls`. A module that implements several
    components (shared embeddings) is each of them, call by call. activations: for each path that
    was reached, its `inputs` (numeric arrays) and `output`, and `gradients` if requested, or
    `error` or `refused` if something failed.
    """

    def __init__(
        self,
        modules: Mapping[str, Any],
        face: ModuleType,
        pull: Pull,
        force: Force | None,
        positions: Mapping[str, np.ndarray],
        arguments: Mapping[str, Sequence[str]],
    ) -> None:
        """modules: from `submodules`. face: the framework's helper module.

        positions: the positions that the reference encodes, by path of a module that adds 0, 1, 2,
        ... to its input. arguments: path -> the module's arguments known to be inputs, in the
        reference's order.
        """
        self.activations: dict[str, dict[str, Any]] = {}
        self.rows: list[tuple[str, Any]] = []
        self._face, self._pull, self._force, self._positions, self._arguments = face, pull, force, positions, arguments
        self._turns: dict[str, list[str]] = {}  # path of a row -> the paths of its module's calls, in order
        self._open: list[str] = []
        self._forced: dict[int, Any] | None = None  # the forced call's tensors
        self._given_up: set[str] = set()  # paths whose calls cannot be recorded
        self._added: set[str] = set()  # modules that added the positions to a nonzero input
        for path, module in modules.items():
            known = next((row for row, other in self.rows if other is module or (isinstance(module, str) and other == module)), path)
            if known == path:
                self.rows.append((path, module))
            self._turns.setdefault(known, []).append(path)

    def run(self, root: Any, function: Callable[..., Any], inputs: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Calls the model and returns the activations; {} without the forced component.

        An exception becomes the `error` of every component that had started and not finished.
        """
        if self._force is not None and self._force.path and not any(self._force.path in turns for turns in self._turns.values()):
            return self.activations
        whole = ModuleCall("", 0, root, function, (), dict(inputs))
        try:
            self._guarded("", self._begin, whole)
            self._guarded("", self._end, whole, function(*whole.args, **whole.kwargs))
        except (NotCovered, Unsupported):
            raise
        except _Enough:
            pass
        except Exception as error:
            for path in self._open:
                self.activations[path]["error"] = " ".join(words(error).split())
        return self.activations

    def enter(self, call: ModuleCall) -> None:
        """Records the start of a module's call, and may replace its arguments."""
        if path := self._path(call):
            self._guarded(path, self._begin, call)

    def leave(self, call: ModuleCall, output: Any) -> None:
        """Records the end of a module's call."""
        if path := self._path(call):
            self._guarded(path, self._end, call, output)

    def _guarded(self, path: str, record: Callable[..., None], *arguments: Any) -> None:
        """Records a call. If recording fails, the component is not traced."""
        if path in self._given_up:
            return
        try:
            record(path, *arguments)
        except Exception as error:
            self._given_up.add(path)
            self._open = [other for other in self._open if other != path]
            self.activations[path] = {"inputs": [], "refused": f"cannot be traced: {words(error)}"}
            if self._force is not None and path == self._force.path:
                raise _Enough from error

    def _path(self, call: ModuleCall) -> str:
        """Returns the canonical path of a call; "" if its module has no components left."""
        turns = self._turns[call.path]
        return turns[call.index] if call.index < len(turns) else ""

    def _begin(self, path: str, call: ModuleCall) -> None:
        self._open.append(path)
        self.activations[path] = {}
        if path in self._positions:
            call.args, call.kwargs = self._begin_positions(path, call.args, call.kwargs)
            return
        given = self._given(path, call)
        if self._force is not None and path == self._force.path:
            given = self._replaced(self._force, given)
            call.args = tuple(given[index] for index in range(len(call.args)))
            call.kwargs = {name: given[name] for name in call.kwargs}
        self.activations[path]["inputs"] = [array for _, array in self._numeric(given)]

    def _end(self, path: str, call: ModuleCall, output: Any) -> None:
        first = next(filter(self._face.is_tensor, leaves(output)), None)
        if path not in self._added:
            self.activations[path]["output"] = None if first is None else self._face.to_numpy(first)
        if self._force is not None and path == self._force.path:
            if self._forced is not None and self._force.cotangent is not None and first is not None:
                cotangent = submodules.transposed(self._force.cotangent, tuple(first.shape))
                self.activations[path]["gradients"] = self._pull.gradients(call, self._forced, first, cotangent)
            raise _Enough
        del self._open[self._open.index(path) :]

    def _given(self, path: str, call: ModuleCall) -> dict[int | str, Any]:
        """Returns a call's arguments by position or name, in the reference's order."""
        given: dict[int | str, Any] = dict([*enumerate(call.args), *call.kwargs.items()])
        known = self._arguments.get(path, ())
        if not known:
            return given
        try:
            named = [*inspect.signature(call.function).bind(*call.args, **call.kwargs).arguments]
        except (TypeError, ValueError):
            return given
        names = {key: named[key] if isinstance(key, int) and key < len(named) else key for key in given}
        order = [*known, *named]
        ranks = {key: order.index(name) if name in order else len(order) for key, name in names.items()}
        return {key: given[key] for key in sorted(given, key=ranks.__getitem__)}

    def _begin_positions(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Records a module that adds positions 0, 1, 2, ...: these are its inputs.

        Forcing it means passing zeros. Only then is its output recorded: otherwise the rounding of
        the sum would exceed the tolerance of the positions.
        """
        wanted, numeric = self._positions[path], self._numeric((args, kwargs))
        tensor, given = next((pair for pair in numeric if pair[1].dtype.kind not in "iu"), (None, np.empty(0)))
        known = np.array(np.broadcast_to(np.arange(wanted.shape[1]), wanted.shape))
        fits = given.shape[:2] in (wanted.shape, wanted.shape[::-1])
        self.activations[path]["inputs"] = [known] if fits else [array for _, array in numeric]
        if self._force is None or path != self._force.path:
            self._added.add(path)
            return args, kwargs
        if not fits or not np.array_equal(known, self._force.inputs[0]):
            self.activations[path]["refused"] = "cannot be forced: the module always adds positions 0, 1, 2, ..."
            raise _Enough
        zeros = self._face.like(np.zeros_like(given), tensor)
        return mapped((args, kwargs), lambda leaf: zeros if leaf is tensor else leaf)

    def _numeric(self, value: Any) -> list[tuple[Any, np.ndarray]]:
        pairs = [(leaf, self._face.to_numpy(leaf)) for leaf in leaves(value) if self._face.is_tensor(leaf)]
        return [(tensor, array) for tensor, array in pairs if array.dtype.kind != "b"]

    def _replaced(self, force: Force, given: Mapping[int | str, Any]) -> dict[int | str, Any]:
        """Returns the arguments with forced inputs. Ends the run if one does not fit."""
        own = self._numeric(given)
        chosen = submodules.assign([array for _, array in own], force.inputs)
        if chosen is None:
            wanted, came = (", ".join(str(x.shape) for x in arrays) for arrays in (force.inputs, [array for _, array in own]))
            refused = f"cannot be forced: the shapes of the reference's inputs are {wanted}, of the module's {came or 'none'}"
            self.activations[force.path] = {"inputs": [array for _, array in own], "refused": refused}
            raise _Enough
        forced: dict[int, Any] = {}
        replaced = []
        for (tensor, array), index in zip(own, chosen, strict=True):
            if index is None:
                replaced.append(tensor)
                continue
            same = next(i for i, other in enumerate(force.inputs) if np.array_equal(other, force.inputs[index]))
            if same not in forced:
                forced[same] = self._face.like(submodules.transposed(force.inputs[same], array.shape), tensor)
                if force.cotangent is not None and array.dtype.kind not in "iu":
                    forced[same] = self._pull.leaf(forced[same])
            replaced.append(forced[same])
        tensors, known = iter(replaced), {id(tensor) for tensor, _ in own}
        self._forced = forced
        return mapped(given, lambda leaf: next(tensors) if id(leaf) in known else leaf)
