"""The judge's adapter of JAX with Flax NNX: runs a case on any module or function."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import flax
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from flax import nnx

from impl_jax import framework, weights
from impl_jax.fast.compiled import compiled
from reference_numpy import parameters as canonical

from ...case import Case
from ...reference.components import forward_of
from ..port import Unsupported
from . import matching
from .matching import Rows
from .tracing import Call, Force, Recorder, Tensors, canonical_gradients, intercepted, native_variables

__all__ = ["Adapter"]


class Adapter:
    """Runs cases on the components of a port.

    port: a module or namespace with `components` (name -> build(config, dtype), dtype being JAX's), and where they differ from those
    of `impl_jax`: `weights` (the table), `compiled`, `modes`, and `module_paths` (the modules' other names).
    """

    def __init__(self, port: Any) -> None:
        self.components: dict[str, Callable[..., Any]] = port.components
        self.table = getattr(port, "weights", weights.TABLE)
        self.compiled = getattr(port, "compiled", compiled)
        self.renamed: Rows = matching.own_paths(port)
        self.modes: tuple[str, ...] = getattr(port, "modes", ("compiled", "eager"))

    def run(self, case: Case) -> Any:
        """The port's outputs, in the dtype that the port returned: an array, or a tuple or mapping of arrays.

        The gradients of a component are those of `jax.vjp`. float64 cases run under jax_enable_x64, all others without it, which is JAX's
        default. Raises ValueError on a device or mode that is not there, NotCovered where a call takes no keep masks and the case gives
        some, and Unsupported where XLA lacks an operation in the case's dtype.
        """
        mode = case.mode or self.modes[0]
        if mode not in self.modes:
            raise ValueError(f"mode must be one of {', '.join(self.modes)}; got {mode!r}")
        device = framework.device(case.device)
        with framework.settings(case.device, case.dtype), _unsupported():
            if forward := forward_of(case.component):
                return self._gradients(dataclasses.replace(case, component=forward), device, mode == "compiled")
            function, inputs = self._built(case, device)
            if matching.compiles_itself(function):
                inputs["compiled"] = mode == "compiled"
            elif mode == "compiled":
                function = self.compiled(function)
            return jax.tree.map(weights.to_numpy, function(**inputs))

    def trace(self, case: Case, forces: Sequence[Force | None] = (None,)) -> list[dict[str, dict[str, Any]]]:
        """What every submodule that has a canonical path was given and gave, by path: one eager run for each force, on one model.

        forces: None is a free run; otherwise the one component that is given other inputs, and these. Errors as `run`.
        """
        device = framework.device(case.device)
        with framework.settings(case.device, case.dtype), _unsupported(), _eagerly():
            function, inputs = self._built(case, device)
            modules = matching.submodules(function, case, self.renamed, nnx.Module)
            results = []
            for force in forces:
                recorder = Recorder(modules, self._tensors(function, case), force)
                with intercepted(recorder):
                    results.append(recorder.run(function, _unsupported()(function.__call__), inputs))
            return results

    def _gradients(self, case: Case, device: jax.Device, compiled: bool) -> dict[str, np.ndarray]:
        """By name the gradients of the floating inputs, and of the parameters; compiled: forward and backward are one program."""
        arrays = dict(case.inputs)
        cotangent = arrays.pop("cotangent")
        function, inputs = self._built(dataclasses.replace(case, inputs=arrays), device)
        flat = canonical.flatten(inputs)
        leaves = {name: value for name, value in flat.items() if _is_floating(value)}

        def call(function: Any, leaves: dict[str, jax.Array]) -> Any:
            return function(**canonical.nest(flat | leaves))

        found, variables = _pulled(function, call, leaves, weights.from_numpy(cotangent, device), compiled)
        parameters = {f"parameters.{name}": array for name, array in self._canonical(function, case, variables).items()}
        return {name: weights.to_numpy(gradient) for name, gradient in found.items()} | parameters

    def _canonical(self, function: Any, case: Case, variables: dict[int, jax.Array]) -> dict[str, np.ndarray]:
        """The gradients of a module's variables, by canonical name; zeros for a variable that is no parameter of the module."""
        case, root = matching.whole(case), matching.owner(function)
        native = {
            name: weights.to_numpy(variables.get(id(variable), jnp.zeros_like(variable.get_value())))
            for name, variable in native_variables(root, case, self.table).items()
        }
        return canonical_gradients(native, case, self.table)

    def _tensors(self, function: Any, case: Case) -> Tensors:
        def gradients(call: Call, output: jax.Array, cotangent: np.ndarray) -> dict[str, dict[Any, np.ndarray]]:
            def again(module: Any, leaves: dict[int, jax.Array]) -> Any:
                new = {id(call.leaves[index]): leaf for index, leaf in leaves.items()}
                args, kwargs = matching.mapped((call.args, call.kwargs), lambda value: new.get(id(value), value))
                return module(*args, **kwargs)

            leaves = {index: leaf for index, leaf in call.leaves.items() if _is_floating(leaf)}
            found, variables = _pulled(call.module, again, leaves, weights.from_numpy(cotangent))
            numbers = {index: weights.to_numpy(gradient) for index, gradient in found.items()}
            return {"inputs": numbers, "parameters": self._canonical(function, case, variables)}

        return Tensors(
            is_tensor=lambda value: isinstance(value, jax.Array),
            to_numpy=weights.to_numpy,
            like=lambda array, tensor: weights.from_numpy(array, tensor.sharding).astype(tensor.dtype),
            leaf=lambda tensor: tensor,
            gradients=gradients,
        )

    def _built(self, case: Case, device: jax.Device) -> tuple[Any, dict[str, Any]]:
        """The component with its parameters, in evaluation mode, and the arguments of its call."""
        function = self.components[case.component](case.config, jnp.dtype(case.dtype))
        if isinstance(module := matching.owner(function), nnx.Module):
            if case.parameters:
                weights.load(module, case.parameters, case.config, matching.whole(case).component, self.table)
            module.eval()
        inputs = {
            name: weights.from_numpy(value, device) if isinstance(value, np.ndarray) else value for name, value in case.inputs.items()
        }
        nested = canonical.nest(inputs)
        matching.refuse_keep(function, nested)
        return function, nested

    @staticmethod
    def describe() -> dict[str, Any]:
        """Versions, devices and the precision of float32 products, for `doctor`."""
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
    leaves: dict[Any, jax.Array],
    cotangent: jax.Array,
    compiled: bool = False,
) -> tuple[dict[Any, jax.Array], dict[int, jax.Array]]:
    """The gradients of the sum of cotangent * the first array of `call(function, leaves)`: by leaf, and by the identity of each variable.

    function: a module, a module's method, or a function without variables.
    """
    owner = matching.owner(function)
    module = owner if isinstance(owner, nnx.Module) else None
    graph, state, *rest = nnx.split(module, nnx.Param, ...)

    def pull(state: Any, leaves: dict[Any, jax.Array], cotangent: jax.Array) -> Any:
        def forward(state: Any, leaves: dict[Any, jax.Array]) -> jax.Array:
            merged = nnx.merge(graph, state, *rest)
            again = function if module is None else matching.of_other(function, merged)
            return next(value for value in matching.leaves(call(again, leaves)) if isinstance(value, jax.Array))

        output, back = jax.vjp(forward, state, leaves)
        return back(cotangent.astype(output.dtype))

    state, found = (jax.jit(pull) if compiled else pull)(state, leaves, cotangent)
    values = dict(nnx.to_flat_state(state)) if module is not None else {}
    return found, {id(node): values[path].get_value() for path, node in nnx.iter_graph(module) if path in values}


def _is_floating(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating)


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """What the port compiles runs eagerly: values are not traced, and `nnx.jit` does not hand clones to the modules that it wraps."""

    def call(wrapped: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapped.__wrapped__(*args, **kwargs)

    with jax.disable_jit(), mock.patch.object(type(nnx.jit(call)), "__call__", call):
        yield


@contextlib.contextmanager
def _unsupported() -> Iterator[None]:
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith("UNIMPLEMENTED"):
            raise
        raise Unsupported(str(error).partition("\n")[0]) from error
