"""The parameters of a module by their native names, in the order in which the module declares them, for each framework."""

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...common.modules import attributes, face, framework_of
from ...common.modules.recording import ModuleCall
from .failures import FAILURES


@dataclass(frozen=True)
class Leaf:
    """A parameter: its native name and shape.

    first: which of its axes come first, "out" (outputs) or "in" (inputs); "" if that is open.
    """

    path: str
    shape: tuple[int, ...]
    first: str = ""

    @property
    def parent(self) -> str:
        return self.path.rpartition(".")[0]


@dataclass
class Started:
    """What the first call of a Linen module shows: its parameters, its parts, and the inputs and outputs of each."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    modules: list[Any] = field(default_factory=list)
    calls: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # own path -> the first argument, and the output


def signature(module: Any) -> dict[str, inspect.Parameter]:
    """Returns the arguments of a call of the module, without `*args` and `**kwargs`. Raises ValueError if it cannot be called."""
    name = {"torch": "forward", "keras": "call"}.get(framework_of(module), "__call__")
    function = getattr(module, name, None)
    if function is None or getattr(function, "__qualname__", "") in ("_forward_unimplemented", "Layer.call"):
        raise ValueError(f"{type(module).__name__} has no {name}: name a class that has one, in which its parts are called")
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name: parameter for name, parameter in inspect.signature(function).parameters.items() if parameter.kind not in kinds}


def leaves(module: Any, variables: Mapping[str, Any]) -> list[Leaf]:
    """Returns the trainable parameters, each once. variables: of a Linen module, which holds none itself."""
    if framework_of(module) == "torch":
        if lazy := [path for path, value in module.named_parameters() if type(value).__name__ == "UninitializedParameter"]:
            raise ValueError(f"{lazy[0]} has no shape before the first call; name a function that builds the module and calls it once")
        return [Leaf(path, tuple(value.shape), _first(module, path)) for path, value in module.named_parameters() if value.requires_grad]
    found = variables.items() if framework_of(module) == "linen" else attributes.variables(module)
    return [Leaf(path, tuple(value.shape), "in" if path.endswith("kernel") else "") for path, value in found]


def started(module: Any, framework: str, values: Mapping[str, Any]) -> Started:
    """Calls a Keras layer, which makes its variables; initialises a Linen module, which makes its parts and their parameters.

    Raises what the module raises.
    """
    found = Started()
    if framework == "keras":
        module(**values)
        return found
    import jax

    linen = face(framework)

    def enter(call: ModuleCall) -> None:
        found.modules.append(call.module)

    def leave(call: ModuleCall, output: Any) -> None:
        if call.args:
            found.calls[call.path] = call.args[0], output

    with linen.calls(linen.path, enter, leave):
        found.variables = linen.variables(module.init(jax.random.key(0), **values).get("params", {}))
    return found


def epsilon(module: Any, others: Sequence[Any] = ()) -> float | None:
    """Returns what the norms of the module add to the variance, if all agree; None otherwise. others: modules that it has made."""
    found = set()
    own = module.modules() if framework_of(module) == "torch" else attributes.parts(module)
    for node in (*own, *others):
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
