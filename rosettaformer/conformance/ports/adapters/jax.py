"""The judge's adapter of JAX with Flax NNX or Linen: runs a case on any module or function."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import flax
import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from flax import linen as nn
from flax import nnx

from impl_jax import framework, weights
from impl_jax.programs.compiled import compiled
from reference_numpy import layout, parameters

from ...case import Case
from ...reference.components import model_of
from . import linen, matching
from .base import Base, Named
from .calls import Called
from .tracing import Call, Force, Recorder, Tensors

__all__ = ["Adapter"]


class Adapter(Base):
    """Runs cases compiled or eagerly: float64 ones under jax_enable_x64, all others without it, which is JAX's default."""

    own = weights
    kinds = (nnx.Module,)
    modes = ("compiled", "eager")
    no_kernel = (jax.errors.JaxRuntimeError,), (r"\A(UNIMPLEMENTED.*)",)

    def _dtype(self, name: str) -> np.dtype:
        return jnp.dtype(name)

    def _device(self, name: str) -> jax.Device:
        return framework.device(name)

    def _settings(self, case: Case) -> contextlib.AbstractContextManager[None]:
        return framework.settings(case.device, case.dtype)

    @contextlib.contextmanager
    def _eagerly(self) -> Iterator[None]:
        def call(wrapped: Any, *args: Any, **kwargs: Any) -> Any:
            return wrapped.__wrapped__(*args, **kwargs)

        # `nnx.jit` hands clones to the modules that it wraps, even where `jax.jit` is off.
        with jax.disable_jit(), mock.patch.object(type(nnx.jit(call)), "__call__", call):
            yield

    def _module(self, built: Any) -> Any:
        return linen.Applied(built) if isinstance(built, nn.Module) else built

    def _prepare(self, function: Any, inputs: dict[str, Any], case: Case) -> None:
        module = matching.owner(function)
        matching.refuse_rare(module.linen.module.__call__ if function is module and isinstance(module, linen.Applied) else function, inputs)
        if isinstance(module, linen.Applied):
            given = {name: value for name, value in inputs.items() if name != "cotangent"}
            module.initialise(**(function.arguments(given) if isinstance(function, Called) else given))
        if isinstance(module, nnx.Module):
            self._load(module, case)
            module.eval()

    def _load(self, module: Any, case: Case) -> None:
        if not isinstance(module, linen.Applied):
            super()._load(module, case)
            return
        component, table = model_of(case.component), self._found_table(module, case)
        module.load(layout.to_native(case.parameters, table, case.config, component) if case.parameters else {})

    def _found_table(self, module: Any, case: Case) -> layout.Table:
        if not isinstance(module, linen.Applied):
            return super()._found_table(module, case)
        return matching.found(self._table(case), module.has, lambda: [*module.params])

    def _variables(self, function: Any, case: Case) -> dict[str, Any]:
        module = matching.owner(function)
        if not isinstance(module, linen.Applied):
            return super()._variables(function, case)
        rows = zip(self._table(case), self._found_table(module, case), strict=True)
        return {native: module.variable(found) for (_, native, _), (_, found, _) in rows}

    def _submodule(self, root: Any, path: str) -> Any:
        return root.part(path) if isinstance(root, linen.Applied) else super()._submodule(root, path)

    def _watched(self, recorder: Recorder) -> contextlib.AbstractContextManager[None]:
        is_linen = any(isinstance(module, linen.Part) for module in recorder.modules)
        return linen.intercepted(recorder) if is_linen else super()._watched(recorder)

    def _stack(self, tensors: list[Any]) -> Any:
        return jnp.stack(tensors)

    def _own_names(self, module: Any) -> list[str]:
        return [".".join(map(str, path)) for path, node in nnx.iter_graph(module) if isinstance(node, nnx.Variable)]

    def _graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return getattr(self.port, "compiled", compiled)(function)

    def _to_numpy(self, outputs: Any) -> Any:
        return jax.tree.map(weights.to_numpy, outputs)

    def _gradients(self, case: Case) -> Named:
        function, inputs = self._built(case)
        cotangent, flat = inputs.pop("cotangent"), parameters.flatten(inputs)
        leaves = {name: value for name, value in flat.items() if _is_floating(value)}

        def call(function: Any, leaves: dict[str, jax.Array]) -> Any:
            return function(**parameters.nest(flat | leaves))

        found, variables = _pulled(function, call, leaves, cotangent, case.mode == "compiled")
        return self._named(found, self._native(function, case, variables), case)

    def _native(self, function: Any, case: Case, gradients: dict[int, jax.Array]) -> dict[str, jax.Array]:
        """The gradients of a module's variables by native name; zeros for a variable that is no parameter of the module."""
        variables = self._variables(function, case).items()
        return {name: gradients.get(id(variable), jnp.zeros_like(variable.get_value())) for name, variable in variables}

    @contextlib.contextmanager
    def _tensors(self, function: Any, case: Case, force: Force | None) -> Iterator[Tensors]:
        def gradients(call: Call, output: jax.Array, cotangent: np.ndarray) -> Named:
            is_part = isinstance(call.module, linen.Part)
            # the whole is called as the case calls it, and so is that of a Linen module, which has submodules in a call alone
            called = function if is_part or call.module is matching.owner(function) else call.module

            def again(called: Any, leaves: dict[int, jax.Array]) -> Any:
                new = {id(call.leaves[index]): leaf for index, leaf in leaves.items()}
                args, kwargs = matching.mapped((call.args, call.kwargs), lambda value: new.get(id(value), value))
                return linen.called_with(called, self._inputs(case), call.module, args, kwargs) if is_part else called(*args, **kwargs)

            leaves = {index: leaf for index, leaf in call.leaves.items() if _is_floating(leaf)}
            found, variables = _pulled(called, again, leaves, weights.from_numpy(cotangent))
            return self._named(found, self._native(function, case, variables), case)

        yield Tensors(
            is_tensor=lambda value: isinstance(value, jax.Array),
            to_numpy=weights.to_numpy,
            like=lambda array, tensor: weights.from_numpy(array, tensor.sharding).astype(tensor.dtype),
            leaf=lambda tensor: tensor,
            signature=lambda module: module.signature if isinstance(module, linen.Part) else inspect.signature(module),
            gradients=gradients,
        )

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
