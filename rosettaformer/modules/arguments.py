"""The arguments of a module's call: by name, and those that say whether it trains."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

# an argument that says whether a call trains -> its value if it does
_TRAINS = {
    "train": True, "training": True, "is_training": True, "istraining": True, "is_train": True, "deterministic": False,
    "inference": False, "use_running_average": False,
}  # fmt: skip


def training_flag(name: str, trains: bool) -> bool | None:
    """Returns the value of an argument that says whether a call trains; None if it is no such argument."""
    flag = _TRAINS.get(name.lower())
    return None if flag is None else flag == trains


def names(function: Callable[..., Any]) -> dict[str, bool]:
    """Returns the arguments by name, and whether each has no default; those that say whether it trains are left out."""
    return {name: each.default is each.empty for name, each in _parameters(function).items() if training_flag(name, False) is None}


def bound(function: Callable[..., Any], inputs: Mapping[str, Any], trains: bool = False) -> dict[str, Any]:
    """Returns the arguments of a call: inputs by the names that it has, the others in their order in the places that are left.

    What says whether the call trains is given too. Raises ValueError if an input has no place, or an argument no input.
    """
    parameters, known = _parameters(function), names(function)
    flags = {name: training_flag(name, trains) for name in parameters if name not in known}
    free = [name for name in known if name not in inputs]
    placed = {name: value for name, value in inputs.items() if name in parameters}
    for name, value in inputs.items():
        if name in parameters:
            continue
        if not free:
            raise ValueError(f"the model has no argument for the input {name}; its arguments are {', '.join(known) or 'none'}")
        placed[free.pop(0)] = value
    placed |= {name: None for name in free if known[name] and "None" in str(parameters[name].annotation)}
    if required := [name for name in free if known[name] and name not in placed]:
        raise ValueError(f"the model needs the arguments {', '.join(required)}; the inputs are {', '.join(inputs)}")
    return placed | flags


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each for name, each in inspect.signature(function).parameters.items() if each.kind in kinds and name != "self"}
