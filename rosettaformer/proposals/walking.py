"""The parameters of a module by their native names, in the order in which the module declares them, for each framework."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .failures import FAILURES

__all__ = ["Leaf", "Started", "epsilon", "framework_of", "leaves", "signature", "started", "tensor"]


@dataclass(frozen=True)
class Leaf:
    """A parameter: its native name and shape.

    first: which of its axes come first, "out" (outputs) or "in" (inputs); "" where that is open.
    """

    path: str
    shape: tuple[int, ...]
    first: str = ""

    @property
    def parent(self) -> str:
        return self.path.rpartition(".")[0]


@dataclass
class Started:
    """What the first call of a module shows: of a Linen module its parameters, its parts, and what each of them is given and gives."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    modules: list[Any] = field(default_factory=list)
    calls: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # own path -> the first argument, and the output


def framework_of(module: Any) -> str:
    """torch, tf, jax or linen by the classes of the module; empty where it is of none."""
    names = {f"{cls.__module__}.{cls.__name__}" for cls in type(module).__mro__}
    if "torch.nn.modules.module.Module" in names:
        return "torch"
    if any(name.startswith("flax.linen") for name in names):
        return "linen"
    if any(name.startswith("flax.nnx") for name in names):
        return "jax"
    return "tf" if any(name.startswith("keras.") and name.endswith(".Layer") for name in names) else ""


def signature(module: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a call of the module, without those that take what is left over. Raises ValueError where it cannot be called."""
    name = {"torch": "forward", "tf": "call"}.get(framework_of(module), "__call__")
    function = getattr(module, name, None)
    if function is None or getattr(function, "__qualname__", "") in ("_forward_unimplemented", "Layer.call"):
        raise ValueError(f"{type(module).__name__} has no {name}: name a class that has one, in which its parts are called")
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: parameter for name, parameter in inspect.signature(function).parameters.items() if parameter.kind not in kinds}


def leaves(module: Any, variables: Mapping[str, Any]) -> list[Leaf]:
    """The trainable parameters, each once. variables: those of a Linen module, which has none itself."""
    framework = framework_of(module)
    if framework == "torch":
        if lazy := [path for path, value in module.named_parameters() if type(value).__name__ == "UninitializedParameter"]:
            raise ValueError(f"{lazy[0]} has no shape before the first call; name a function that builds the module and calls it once")
        return [Leaf(path, tuple(value.shape), _first(module, path)) for path, value in module.named_parameters() if value.requires_grad]
    if framework == "linen":
        return [Leaf(path, tuple(value.shape), "in" if path.endswith("kernel") else "") for path, value in _nested(variables)]
    return [Leaf(path, tuple(value.shape), "in" if path.endswith("kernel") else "") for path, value in _attributes(module, "", {})]


def tensor(array: Any, framework: str) -> Any:
    """The array as the framework has it."""
    if framework == "torch":
        import torch

        return torch.as_tensor(array)
    if framework == "tf":
        import keras

        return keras.ops.convert_to_tensor(array)
    import jax.numpy as jnp

    return jnp.asarray(array)


def started(module: Any, framework: str, values: Mapping[str, Any]) -> Started:
    """Calls a Keras layer, which makes its variables; initialises a Linen module, which makes its parts and their parameters.

    Raises what the module raises.
    """
    found = Started()
    if framework == "tf":
        module(**values)
        return found
    import jax
    from flax import linen

    def see(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
        found.modules.append(context.module)
        output = call(*args, **kwargs)
        if context.method_name == "__call__" and args:
            found.calls[".".join(context.module.path)] = args[0], output
        return output

    with linen.intercept_methods(see):
        found.variables = module.init(jax.random.key(0), **values).get("params", {})
    return found


def epsilon(module: Any, others: Sequence[Any] = ()) -> float | None:
    """What the norms of the module add to the variance, where all say the same; None where none says it. others: what it has made."""
    found = set()
    for node in (*_modules(module), *others):
        for name in ("eps", "epsilon", "variance_epsilon", "layer_norm_eps"):
            with contextlib.suppress(*FAILURES):  # of a property
                value = getattr(node, name, None)
                if isinstance(value, float) and 0 < value < 0.1:
                    found.add(value)
    return found.pop() if len(found) == 1 else None


def _first(module: Any, path: str) -> str:
    owner = type(module.get_submodule(path.rpartition(".")[0]))
    names = {cls.__name__ for cls in owner.__mro__}
    if path.endswith(("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")):
        return "out"
    return "out" if names & {"Linear", "Conv1d"} else "in" if "Conv1D" in names else ""


def _nested(variables: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in variables.items():
        if isinstance(value, Mapping):
            yield from _nested(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _attributes(node: Any, prefix: str, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """The variables at attributes and in lists of a Keras layer or an NNX module, by path. seen: what was met, which so keeps its id."""
    for name, value in _members(node):
        if id(value) in seen:
            continue
        if _is_variable(value):
            seen[id(value)] = value
            yield prefix + name, value
        elif _is_part(value):
            seen[id(value)] = value
            yield from _attributes(value, f"{prefix}{name}.", seen)


def _members(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, (list, tuple)) or type(node).__name__ == "List":
        yield from ((str(index), value) for index, value in enumerate(node))
        return
    if isinstance(node, Mapping):
        yield from ((str(key), value) for key, value in node.items())
        return
    if type(node).__name__ in ("Sequential", "Functional"):
        yield "layers", list(node.layers)
        return
    for name, value in vars(node).items():
        public = name.lstrip("_")
        if not name.startswith("_"):
            yield name, value
        elif getattr(type(node), public, None) is not None and getattr(node, public, None) is value:
            yield public, value  # behind a property, as the kernel of a Keras layer


def _is_variable(value: Any) -> bool:
    names = {cls.__name__ for cls in type(value).__mro__}
    if "Param" in names:
        return True
    framework = type(value).__module__.startswith(("keras", "tensorflow"))
    return framework and "Variable" in "".join(names) and getattr(value, "trainable", False)


def _is_part(value: Any) -> bool:
    if isinstance(value, (list, tuple, Mapping)) or type(value).__name__ == "List":
        return True
    return framework_of(value) in ("tf", "jax") and hasattr(value, "__dict__")


def _modules(module: Any) -> Iterator[Any]:
    """The module and what it is made of."""
    if framework_of(module) == "torch":
        yield from module.modules()
        return
    queue, seen = [module], dict[int, Any]()
    while queue:
        node = queue.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        yield node
        if hasattr(node, "__dict__") or isinstance(node, (list, tuple, Mapping)):
            queue += [value for _, value in _members(node) if _is_part(value)]
