"""Flax Linen: a module together with its parameters, as the adapter of JAX runs and traces it."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from flax import nnx, traverse_util
from flax.core import meta

from impl_jax import weights
from reference_numpy.suggestions import nearest

from ....modules import linen as face
from ....modules.recording import Enter, Leave, ModuleCall

_NUMBERED = re.compile(r"_(\d+)(?=\.|$)")


class Applied(nnx.Module):
    """A Linen module and its variables, as an NNX module whose call is `apply`.

    params: by dotted name within {"params": ...}, where the name of a numbered module may be written `layers_0` or `layers.0`.
    """

    def __init__(self, module: nn.Module) -> None:
        self.linen = _Linen(module)
        self.params: nnx.Dict[Any] = nnx.Dict()

    def initialise(self, **inputs: Any) -> None:
        """Makes the parameters, of which only the shapes and dtypes count, and what else the module's `init` makes for these inputs."""
        module, key = self.linen.module, jax.random.key(0)
        made = meta.unbox(jax.eval_shape(lambda: module.init(key, **inputs)))
        if made.keys() - {"params", "intermediates"}:
            others = meta.unbox(module.init(key, **inputs))
            self.linen.others = {name: others[name] for name in others.keys() - {"params", "intermediates"}}
        self.linen.names = {uniform(name): name for name in traverse_util.flatten_dict(made.get("params", {}), sep=".")}
        flat = traverse_util.flatten_dict(made.get("params", {}), sep=".")
        self.params = nnx.Dict({name: nnx.Param(flat[own]) for name, own in self.linen.names.items()})

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets the parameters, by own name. Raises one ValueError with all that is missing, too much, or of another shape or dtype."""
        given = {uniform(name): (name, array) for name, array in arrays.items()}
        problems = [
            f"the module has no parameter {name}{nearest(key, self.params)}" for key, (name, _) in given.items() if key not in self.params
        ]
        for key, param in self.params.items():
            want, own = param.get_value(), self.linen.names[key]
            if key not in given:
                problems.append(f"no row of the weight table loads the module's {own}")
            elif (got := given[key][1]).shape != want.shape or got.dtype != want.dtype:
                problems.append(f"the module's {own} has shape {want.shape} and dtype {want.dtype}; got {got.shape} and {got.dtype}")
        if problems:
            raise ValueError("parameters do not fit:\n  " + "\n  ".join(problems))
        for key, (_, array) in given.items():
            self.params[key].set_value(weights.from_numpy(array))

    def has(self, name: str) -> bool:
        """Whether there is a parameter of that own name."""
        return uniform(name) in self.params

    def variable(self, name: str) -> Any:
        """The parameter of that own name."""
        return self.params[uniform(name)]

    def __call__(self, **inputs: Any) -> Any:
        flat = {self.linen.names[key]: param.get_value() for key, param in self.params.items()}
        variables = {**self.linen.others, "params": traverse_util.unflatten_dict(flat, sep=".")}
        return self.linen.module.apply(variables, **inputs)


class _Linen:
    """What does not change in a call. By its identity it is a constant of a compiled program."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.others: dict[str, Any] = {}  # collections of variables that are no parameters
        self.names: dict[str, str] = {}


class _Reached(BaseException):
    """Ends a call of the whole in which a submodule was called; carries what the submodule has given."""

    def __init__(self, output: Any) -> None:
        self.output = output


def calls(paths: Mapping[str, str], enter: Enter, leave: Leave) -> contextlib.AbstractContextManager[None]:
    """Reports the calls of the submodules at these own paths, by the paths that they are mapped to."""
    return face.calls(lambda module: paths.get(uniform(face.path(module))), enter, leave)


def called_with(function: Any, inputs: Mapping[str, Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output of a submodule on these arguments, in a call of the whole with its inputs that goes no further."""

    def enter(call: ModuleCall) -> None:
        call.args, call.kwargs = args, kwargs

    def leave(call: ModuleCall, output: Any) -> None:
        raise _Reached(output)

    path = uniform(face.path(module))
    try:
        with calls({path: path}, enter, leave):
            function(**inputs)
    except _Reached as reached:
        return reached.output
    raise ValueError(f"the module was not called again at {path}")


def uniform(path: str) -> str:
    """A path in which the name of a numbered module is written `layers.0`, and not `layers_0`."""
    return _NUMBERED.sub(r".\1", path)
