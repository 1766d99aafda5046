"""Adds call conventions to error messages, for a port whose functions or modules do not fit them."""

import keyword
import re
import traceback
from collections.abc import Mapping
from typing import Any

from reference_numpy.suggestions import Nearest

from ...common.processes.text import message
from ..case import Case
from ..expectation.components import COMPONENTS, forward_of

FEW = 3  # the most names of a file that an error lists
PORT = (
    "nothing to check: a port defines load(folder) (check it with --like), or functions named after components (see `rosettaformer list "
    "components`), or `framework` and `components`"
)

_NO_FIT = re.compile(
    r"unexpected keyword argument|missing (\d+|a) required|takes .*positional argument|too many positional|multiple values for argument"
)


def hint(error: BaseException, module: Any, case: Any) -> str:
    """Returns how the component is called, to add to an error about arguments that do not fit.

    module: the port's module. case: the case that failed. Returns "" if the error has another
    cause.
    """
    if not (isinstance(error, TypeError | AttributeError) and isinstance(case, Case)):
        return ""
    if case.folder and callable(getattr(module, "load", None)):
        return _of_whole(error)
    if not hasattr(module, "framework"):
        return _of_function(case) if "'Case'" in message(error) or _not_within(error, module) else ""
    if traceback.extract_tb(error.__traceback__)[-1].name == "_built":
        return "; each value in `components` must be a function build(config, dtype) that returns the module"
    return _of_module(case, getattr(module, "call", {})) if _not_within(error, module) else ""


def _of_whole(error: BaseException) -> str:
    """How `load`'s function is called, if its arguments do not fit or a framework got an array."""
    if "ndarray" not in message(error) and not _NO_FIT.search(message(error)):
        return ""
    how = "; the function that load(folder) returns is called with NumPy arrays: token_bt, mask_bt, segment_bt, or the first ones"
    return how + ". Convert them: lambda token_bt: model(torch.from_numpy(token_bt))" * ("Tensor" in message(error))


def nothing(module: Any) -> str:
    """Returns the error for a file that defines no port, with near misses of component names."""
    candidates = Nearest(["load", *COMPONENTS])
    named = {name: candidates.to(name) for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    listed = [f"{name}{like}" for name, like in sorted(named.items(), key=lambda item: not item[1])]
    return f"{PORT}. The file has {', '.join([*listed[:FEW], *['...'] * (len(listed) > FEW)]) or 'no function'}"


def _not_within(error: BaseException, module: Any) -> bool:
    """Whether the call of the port itself failed, not a call inside the port's file."""
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    return bool(_NO_FIT.search(message(error))) and getattr(module, "__file__", None) not in files


def _of_function(case: Case) -> str:
    inputs = f"case.inputs ({', '.join(_inputs(case))})"
    given = [inputs, f"case.parameters ({', '.join(case.parameters)})"] if case.parameters else [inputs]
    return f"; {case.component} is called as {case.component}(case), with {', '.join(given)} and case.config"


def _of_module(case: Case, call: Mapping[str, Mapping[str, Any]]) -> str:
    forward = forward_of(case.component) or case.component
    row = [name for name in call.get(forward, ()) if not keyword.iskeyword(name)]
    names = row if forward in call else [name for name in _inputs(case) if name != "cotangent"]
    return f"; {forward} is called as {forward}({', '.join(f'{name}=...' for name in names)})"


def _inputs(case: Case) -> list[str]:
    """Returns the arguments of the call; nested inputs count as one."""
    return list(dict.fromkeys(name.partition(".")[0] for name in case.inputs))
