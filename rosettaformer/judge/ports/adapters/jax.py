"""JAX adapter, for Flax NNX and Linen modules and for functions."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from flax import linen as nn
from flax import nnx, traverse_util
from flax.core import meta

from impl_jax import framework, weights
from impl_jax.programs.compiled import compiled
from reference_numpy import layout, parameters
from reference_numpy.suggestions import nearest

from ....common.modules import linen as linen_face
from ....common.modules import nnx as face
from ....common.modules.jax import gradients, is_floating
from ....common.modules.nests import leaves, mapped
from ....common.modules.recording import Enter, Leave, ModuleCall
from ...case import Case
from ...expectation.components import model_of
from . import submodules
from .base import Base, Named
from .call_mapping import CallMapping
from .recorder import Force, Pull, Recorder

_NUMBERED = re.compile(r"_(\d+)(?=\.|$)")


class Applied(nnx.Module):
    """An NNX module that wraps a Linen module and its variables; its call is `apply`.

    params: by dotted name within {"params": ...}. A numbered module may be spelled `layers_0` or
    `layers.0`.
    """

    def __init__(self, module: nn.Module) -> None:
        self.linen = _Linen(module)
        self.params: nnx.Dict[Any] = nnx.Dict()

    def initialise(self, **inputs: Any) -> None:
        """Creates the parameters' shapes and dtypes, and `init`'s other collections."""
        module, key = self.linen.module, jax.random.key(0)
        made = meta.unbox(jax.eval_shape(lambda: module.init(key, **inputs)))
        if made.keys() - {"params", "intermediates"}:
            others = meta.unbox(module.init(key, **inputs))
            self.linen.others = {name: others[name] for name in others.keys() - {"params", "intermediates"}}
        self.linen.names = {uniform(name): name for name in traverse_util.flatten_dict(made.get("params", {}), sep=".")}
        flat = traverse_util.flatten_dict(made.get("params", {}), sep=".")
        self.params = nnx.Dict({name: nnx.Param(flat[own]) for name, own in self.linen.names.items()})

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets the parameters. Raises one ValueError that lists all that do not fit."""
        given = {uniform(name): (name, array) for name, array in arrays.items()}
        problems = [
            f"the module has no parameter {name}{nearest(key, self.params)}" for key, (name, _) in given.items() if key not in self.params
        ]
        for key, param in self.params.items():
            want, own = param.get_value(), self.linen.names[key]
            if key not in given:
                problems.append(f"`weights` has no row for the module's parameter {own}")
            elif (got := given[key][1]).shape != want.shape or got.dtype != want.dtype:
                problems.append(f"the module's {own} has shape {want.shape} and dtype {want.dtype}; got {got.shape} and {got.dtype}")
        if problems:
            raise ValueError("the parameters do not fit the module:\n  " + "\n  ".join(problems))
        for key, (_, array) in given.items():
            self.params[key].set_value(weights.from_numpy(array))

    def has(self, name: str) -> bool:
        """Whether a parameter has that name."""
        return uniform(name) in self.params

    def variable(self, name: str) -> Any:
        """Returns the parameter with that name."""
        return self.params[uniform(name)]

    def __call__(self, **inputs: Any) -> Any:
        flat = {self.linen.names[key]: param.get_value() for key, param in self.params.items()}
        variables = {**self.linen.others, "params": traverse_util.unflatten_dict(flat, sep=".")}
        return self.linen.module.apply(variables, **inputs)


class _Linen:
    """The parts that no call changes: constants of a compiled program, hashed by identity."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.others: dict[str, Any] = {}  # collections of variables other than parameters
        self.names: dict[str, str] = {}


class _Reached(BaseException):
    """Ends a call of the whole model after a submodule's call; carries its output."""

    def __init__(self, output: Any) -> None:
        self.output = output


def calls(paths: Mapping[str, str], enter: Enter, leave: Leave) -> contextlib.AbstractContextManager[None]:
    """Reports the calls of the submodules at these paths, under the paths they are mapped to."""
    return linen_face.calls(lambda module: paths.get(uniform(linen_face.path(module))), enter, leave)


def called_with(function: Any, inputs: Mapping[str, Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns a submodule's output for these arguments, from a partial call of the model."""

    def enter(call: ModuleCall) -> None:
        call.args, call.kwargs = args, kwargs

    def leave(call: ModuleCall, output: Any) -> None:
        raise _Reached(output)

    path = uniform(linen_face.path(module))
    try:
        with calls({path: path}, enter, leave):
            function(**inputs)
    except _Reached as reached:
        return reached.output
    raise ValueError(f"the second run of the model did not call its module {path}")


def uniform(path: str) -> str:
    """Spells the name of a numbered module `layers.0` instead of `layers_0`."""
    return _NUMBERED.sub(r".\1", path)


class Adapter(Base):
    """Runs cases compiled or eagerly, with jax_enable_x64 only in float64."""

    own, face = weights, face
    kinds = (nnx.Module,)
    modes = ("compiled", "eager")
    no_kernel = (jax.errors.JaxRuntimeError,), (r"\A(UNIMPLEMENTED.*)",)

    def _dtype(self, name: str) -> np.dtype:
        return jnp.dtype(name)

    def _context(self, case: Case) -> contextlib.AbstractContextManager[None]:
        return framework.device_context(case.device, case.dtype)

    def _module(self, built: Any) -> Any:
        return Applied(built) if isinstance(built, nn.Module) else built

    def _prepare(self, function: Any, inputs: dict[str, Any], case: Case) -> None:
        module = submodules.owner(function)
        submodules.refuse_rare(module.linen.module.__call__ if function is module and isinstance(module, Applied) else function, inputs)
        if isinstance(module, Applied):
            given = {name: value for name, value in inputs.items() if name != "cotangent"}
            module.initialise(**(function.arguments(given) if isinstance(function, CallMapping) else given))
        if isinstance(module, nnx.Module):
            self._load(module, case)
            module.eval()

    def _load(self, module: Any, case: Case) -> None:
        if not isinstance(module, Applied):
            super()._load(module, case)
            return
        component, table = model_of(case.component), self._found_table(module, case)
        module.load(layout.to_native(case.parameters, table, case.config, component) if case.parameters else {})

    def _found_table(self, module: Any, case: Case) -> layout.Table:
        if not isinstance(module, Applied):
            return super()._found_table(module, case)
        return submodules.found(self._table(case), module.has, lambda: [*module.params])

    def _variables(self, function: Any, case: Case) -> dict[str, Any]:
        module = submodules.owner(function)
        if not isinstance(module, Applied):
            return super()._variables(function, case)
        rows = zip(self._table(case), self._found_table(module, case), strict=True)
        return {native: module.variable(found) for (_, native, _), (_, found, _) in rows}

    def _submodule(self, root: Any, path: str) -> Any:
        return (uniform(path) or None) if isinstance(root, Applied) else super()._submodule(root, path)

    def _calls(self, recorder: Recorder) -> contextlib.AbstractContextManager[None]:
        if any(isinstance(module, str) for _, module in recorder.rows):
            return calls({own: path for path, own in recorder.rows}, recorder.enter, recorder.leave)
        return super()._calls(recorder)

    def _stack(self, tensors: list[Any]) -> Any:
        return jnp.stack(tensors)

    def _graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return getattr(self.port, "compiled", compiled)(function)

    def _to_numpy(self, outputs: Any) -> Any:
        return jax.tree.map(weights.to_numpy, outputs)

    def _gradients(self, case: Case) -> Named:
        function, inputs = self._built(case)
        cotangent, flat = inputs.pop("cotangent"), parameters.flatten(inputs)
        floating = {name: value for name, value in flat.items() if is_floating(value)}

        def call(function: Any, floating: dict[str, jax.Array]) -> Any:
            return function(**parameters.nest(flat | floating))

        found, variables = _pulled(function, call, floating, cotangent, case.mode == "compiled")
        return self._named(found, self._native(function, case, variables), case)

    def _native(self, function: Any, case: Case, gradients: dict[int, jax.Array]) -> dict[str, jax.Array]:
        """Returns the variables' gradients by native name; zeros if not a parameter."""
        variables = self._variables(function, case).items()
        return {name: gradients.get(id(variable), jnp.zeros_like(variable.get_value())) for name, variable in variables}

    @contextlib.contextmanager
    def _pull(self, function: Any, case: Case, force: Force | None) -> Iterator[Pull]:
        def gradients(call: ModuleCall, forced: dict[int, Any], output: jax.Array, cotangent: np.ndarray) -> Named:
            root = submodules.owner(function)
            in_whole = isinstance(root, Applied) and call.module is not root  # Linen submodules exist only during a call of the whole model
            called = function if in_whole or call.module is root else call.module

            def again(called: Any, floating: dict[int, jax.Array]) -> Any:
                new = {id(forced[index]): tensor for index, tensor in floating.items()}
                args, kwargs = mapped((call.args, call.kwargs), lambda value: new.get(id(value), value))
                return called_with(called, self._inputs(case), call.module, args, kwargs) if in_whole else called(*args, **kwargs)

            floating = {index: tensor for index, tensor in forced.items() if is_floating(tensor)}
            found, variables = _pulled(called, again, floating, weights.from_numpy(cotangent))
            return self._named(found, self._native(function, case, variables), case)

        yield Pull(lambda tensor: tensor, gradients)

    @staticmethod
    def describe() -> dict[str, Any]:
        """Returns versions, devices and the precision of float32 matmuls."""
        gpus: list[jax.Device] = []
        with contextlib.suppress(RuntimeError):  # no CUDA backend
            gpus = jax.devices("cuda")
        return {
            "version": {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "flax": flax.__version__},
            "devices": ["cpu", *(f"cuda: {gpu.device_kind}" for gpu in gpus)],
            "precision": jax.config.jax_default_matmul_precision or "default",  # type: ignore[attr-defined]
        }


def _pulled(
    function: Any,
    call: Callable[[Any, dict[Any, jax.Array]], Any],
    inputs: dict[Any, jax.Array],
    cotangent: jax.Array,
    compiled: bool = False,
) -> tuple[dict[Any, jax.Array], dict[int, jax.Array]]:
    """Returns gradients of sum(cotangent * first array of the call), by input and variable id.

    function: a module, a method of a module, or a function without variables.
    """
    owner = submodules.owner(function)
    module = owner if isinstance(owner, nnx.Module) else None
    graph, state, *rest = nnx.split(module, nnx.Param, ...)

    def forward(state: Any, inputs: dict[Any, jax.Array]) -> list[jax.Array]:
        merged = nnx.merge(graph, state, *rest)
        again = function if module is None else submodules.of_other(function, merged)
        return [next(value for value in leaves(call(again, inputs)) if isinstance(value, jax.Array))]

    state, found = gradients(forward, (state, inputs), [cotangent], compiled)
    values = dict(nnx.to_flat_state(state)) if module is not None else {}
    return found, {id(node): values[path].get_value() for path, node in nnx.iter_graph(module) if path in values}
