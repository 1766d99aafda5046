"""Base of the adapters: runs a case on a port's component and traces its submodules."""

import abc
import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from reference_numpy import layout, parameters

from ....common.modules import attributes
from ...case import Case
from ...expectation import trace
from ...expectation.components import forward_of, model_of
from ..messages import Force
from ..names import Names
from ..port import NotCovered, Unsupported
from . import submodules
from .call_mapping import CallMapping, CallTable
from .recorder import Pull, Recorder

Named = dict[str, dict[Any, np.ndarray]]  # gradients of `inputs` by name or index, of `parameters` by canonical name


class Base(abc.ABC):
    """Runs cases on a port's components.

    A port is an object with `components` (name -> build(config, dtype), which returns a module or
    function) and optionally `weights`, `call`, `compiled`, `modes` and `module_paths`, by default
    those of our own port. own: the weights of our own port. face: the framework's helper module in
    `common.modules`. kinds: the framework's module classes. no_graph: components that are never
    compiled. no_kernel: the errors that mean a missing kernel, and patterns of their messages,
    whose group is the operation's name.
    """

    own: ModuleType
    face: ModuleType
    kinds: tuple[type, ...]
    modes: tuple[str, ...] = ("eager",)
    no_graph: tuple[str, ...] = ()
    no_kernel: tuple[tuple[type[Exception], ...], tuple[str, ...]]

    def __init__(self, port: Any) -> None:
        self.port = port
        self.names = Names(getattr(port, "weights", self.own.TABLE), getattr(port, "module_paths", ()))
        self.calls = CallTable(getattr(port, "call", {}))
        self.modes = getattr(port, "modes", self.modes)

    def run(self, case: Case) -> Any:
        """Returns the outputs as NumPy, in the dtype that the port returned; or its own gradients.

        Raises ValueError if the device or mode does not exist or the parameters do not fit,
        Unsupported if the framework lacks a kernel, and NotCovered if the component does not take
        the case's keep masks.
        """
        mode = case.mode or self.modes[0]
        if mode not in self.modes:
            raise ValueError(f"mode must be one of {', '.join(self.modes)}; got {mode!r}")
        case = dataclasses.replace(case, mode=mode)
        with self._context(case), self._unsupported():
            if forward := forward_of(case.component):
                found = self._gradients(dataclasses.replace(case, component=forward))
                return found["inputs"] | {f"parameters.{name}": array for name, array in found["parameters"].items()}
            return self._outputs(case)

    def prepared(self, case: Case) -> Callable[[], Any]:
        """Returns a function that runs the case on one model, as NumPy. Raises as `run` does."""
        case = dataclasses.replace(case, mode=case.mode or self.modes[0])
        with self._context(case), self._unsupported():
            function, inputs = self._built(case)
            called = self._in_mode(function, case)

        def call() -> Any:
            with self._context(case), self._unsupported():
                return self._to_numpy(called(**inputs))

        return call

    def trace(self, case: Case, forces: Sequence[Force | None] = (None,)) -> list[dict[str, dict[str, Any]]]:
        """Returns the inputs and outputs of each canonical submodule, one eager run per force.

        forces: None for a free run; otherwise the one component to force, and its inputs. Raises as
        `run` does.
        """
        if self.calls.repeats(case.component):
            raise NotCovered('a module that `call` runs row by row ("for") cannot be traced; only modules that take a batch can')
        with self._context(case), self._unsupported(), self.face.eager():
            function, inputs = self._built(case)
            module = submodules.owner(function)
            calls = trace.record(case.at("float64"))
            find, table = functools.partial(self._submodule, module), self._found_table(module, case)
            found = submodules.submodules(find, filter(None, calls), case, self.names, table)
            modules = {path: part for path, part in found.items() if part is not module}
            positions = {
                path: call.inputs["position_bt"]
                for path, call in calls.items()
                if path and call.component == "positional_encoding" and self.calls.adds_positions()
            }
            arguments = {path: self.calls.arguments(call.component) for path, call in calls.items() if path}
            results = []
            for force in forces:
                with self._pull(function, case, force) as pull:
                    recorder = Recorder(modules, self.face, pull, force, positions, arguments)
                    with self._calls(recorder):
                        results.append(recorder.run(module, self._unsupported()(function.__call__), inputs))
            wanted = {path: trace.arrays(call.inputs) for path, call in calls.items()}
            return [
                {path: one for path, one in run.items() if not submodules.is_less(one.get("inputs", ()), wanted.get(path, ()))}
                for run in results
            ]

    def _built(self, case: Case) -> tuple[Any, dict[str, Any]]:
        """Returns the component with its parameters, and the arguments of its call."""
        built = self.port.components[case.component](case.config, self._dtype(case.dtype))
        function, inputs = self.calls.around(self._module(built), case, self._stack), self._inputs(case)
        self._prepare(function, inputs, case)
        return function, inputs

    def _module(self, built: Any) -> Any:
        """Converts what the port built into what is called."""
        return built

    def _submodule(self, root: Any, path: str) -> Any:
        """Returns the submodule at one of the port's paths; None if there is none."""
        module = attributes.at(root, path)
        return module if isinstance(module, self.kinds) else None

    def _inputs(self, case: Case) -> dict[str, Any]:
        device, inputs = self.face.device(case.device), {**case.inputs, **self.calls.derived(case)}
        return parameters.nest(
            {name: self.own.from_numpy(value, device) if isinstance(value, np.ndarray) else value for name, value in inputs.items()}
        )

    def _table(self, case: Case) -> layout.Table:
        """Returns the table of the component's parameters, with complete names."""
        return self.names.table(case.component, case.config) if case.parameters else ()

    def _load(self, module: Any, case: Case) -> None:
        if case.parameters:
            self.own.load(module, case.parameters, case.config, model_of(case.component), self._found_table(module, case))

    def _found_table(self, module: Any, case: Case) -> layout.Table:
        """Returns the table with the module's names: unique longer ones if missing."""
        has = lambda native: attributes.at(module, native) is not None  # noqa: E731
        return submodules.found(self._table(case), has, lambda: self._own_names(module))

    def _outputs(self, case: Case) -> Any:
        function, inputs = self._built(case)
        return self._to_numpy(self._in_mode(function, case)(**inputs))

    def _in_mode(self, function: Callable[..., Any], case: Case) -> Callable[..., Any]:
        """Returns the function as the case's mode runs it."""
        if isinstance(function, CallMapping):
            return dataclasses.replace(function, function=self._in_mode(function.function, case))
        if submodules.compiles_itself(function):
            return functools.partial(function, compiled=case.mode == "compiled")
        return self._graph(function) if case.mode == "compiled" and case.component not in self.no_graph else function

    def _variables(self, function: Any, case: Case) -> dict[str, Any]:
        """Returns the variables of the component's module that the table names, by native name."""
        root = submodules.owner(function)
        rows = zip(self._table(case), self._found_table(root, case), strict=True)
        return {native: attributes.at(root, found) for (_, native, _), (_, found, _) in rows}

    def _named(self, inputs: Mapping[Any, Any], native: Mapping[str, Any], case: Case) -> Named:
        """Returns gradients as arrays; parameters in canonical names and layout."""
        arrays = {name: self.own.to_numpy(gradient) for name, gradient in native.items()}
        canonical = layout.from_native(arrays, self._table(case), case.config, model_of(case.component)) if case.parameters else {}
        return {"inputs": {name: self.own.to_numpy(gradient) for name, gradient in inputs.items()}, "parameters": canonical}

    @contextlib.contextmanager
    def _unsupported(self) -> Iterator[None]:
        errors, patterns = self.no_kernel
        try:
            yield
        except errors as error:
            for pattern in patterns:
                if found := re.search(pattern, str(error)):
                    raise Unsupported(found[1]) from error
            raise

    def _calls(self, recorder: Recorder) -> contextlib.AbstractContextManager[None]:
        """Reports the calls of the recorder's modules to the recorder."""
        return self.face.calls(recorder.rows, recorder.enter, recorder.leave)

    def _own_names(self, module: Any) -> list[str]:
        """Returns the names of a module's variables."""
        return [name for name, _ in self.face.variables(module)]

    @staticmethod
    @abc.abstractmethod
    def describe() -> dict[str, Any]:
        """Returns versions, devices and the precision of float32 matmuls."""

    @abc.abstractmethod
    def _dtype(self, name: str) -> Any:
        """Returns the framework's dtype of that name."""

    @abc.abstractmethod
    def _context(self, case: Case) -> contextlib.AbstractContextManager[Any]:
        """Selects device and matmul precision. Raises ValueError for a missing device."""

    @abc.abstractmethod
    def _prepare(self, function: Any, inputs: dict[str, Any], case: Case) -> None:
        """Switches to evaluation, loads parameters, and rejects unsupported inputs."""

    @abc.abstractmethod
    def _stack(self, tensors: list[Any]) -> Any:
        """Stacks tensors of one shape along a new first axis."""

    @abc.abstractmethod
    def _graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the compiled function."""

    @abc.abstractmethod
    def _to_numpy(self, outputs: Any) -> Any:
        """Returns the outputs with arrays instead of tensors."""

    @abc.abstractmethod
    def _gradients(self, case: Case) -> Named:
        """Returns gradients of sum(cotangent * output) by floating inputs and parameters."""

    @abc.abstractmethod
    def _pull(self, function: Any, case: Case, force: Force | None) -> contextlib.AbstractContextManager[Pull]:
        """Yields how to compute the gradients of a recorded call while recording lasts."""
