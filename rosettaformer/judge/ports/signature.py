"""Explains how the judge calls a port, if a port cannot be called that way."""

import keyword
import re
import traceback
from collections.abc import Mapping
from typing import Any

from reference_numpy.suggestions import Nearest

from ...common.processes.text import message
from ..case import Case
from ..expectation.components import COMPONENTS, forward_of

FEW = 3  # at most this many names of a file are listed
PORT = (
    "a port must define load(folder), judged with --like, or functions named after components (`rosettaformer list components`), or its "
    "framework and components"
)

_NO_FIT = re.compile(
    r"unexpected keyword argument|missing (\d+|a) required|takes .*positional argument|too many positional|multiple values for argument"
)


def hint(error: BaseException, module: Any, case: Any) -> str:
    """Returns the arguments that a component is called with, to be added to an error which says that its arguments do not fit.

    module: defines the port. case: what it was asked. Empty if the error says something else, and for a whole model,
    which is called otherwise.
    """
    if not (isinstance(error, TypeError | AttributeError) and isinstance(case, Case)):
        return ""
    if case.folder and callable(getattr(module, "load", None)):
        return _of_whole(error)
    if not hasattr(module, "framework"):
        return _of_function(case) if "'Case'" in message(error) or _not_within(error, module) else ""
    if traceback.extract_tb(error.__traceback__)[-1].name == "_built":
        return "; components must map each name to what is called as build(config, dtype) and gives the module"
    return _of_module(case, getattr(module, "call", {})) if _not_within(error, module) else ""


def _of_whole(error: BaseException) -> str:
    """How what `load` returns is called: its arguments do not fit, or a framework is given what is not its own."""
    if "ndarray" not in message(error) and not _NO_FIT.search(message(error)):
        return ""
    how = "; what load(folder) returns is called with NumPy arrays, as many as it takes of token_bt, mask_bt and segment_bt"
    return how + ": lambda token_bt: model(torch.from_numpy(token_bt))" * ("Tensor" in message(error))


def nothing(module: Any) -> str:
    """Returns what a port defines, for a file that defines nothing of it: with some of its functions, first those whose names are nearly
    that of one which the judge calls.
    """
    candidates = Nearest(["load", *COMPONENTS])
    named = {name: candidates.to(name) for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    listed = [f"{name}{like}" for name, like in sorted(named.items(), key=lambda item: not item[1])]
    return f"{PORT}; got {', '.join([*listed[:FEW], *['...'] * (len(listed) > FEW)]) or 'no function'}"


def _not_within(error: BaseException, module: Any) -> bool:
    """Whether arguments do not fit the port's own call, rather than a call inside its file."""
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    return bool(_NO_FIT.search(message(error))) and getattr(module, "__file__", None) not in files


def _of_function(case: Case) -> str:
    parts = [f"case.inputs has {', '.join(_inputs(case))}", f"case.parameters {', '.join(case.parameters)}" if case.parameters else ""]
    return f"; {case.component} is called as {case.component}(case), where {', '.join(filter(None, parts))}, and case.config the settings"


def _of_module(case: Case, call: Mapping[str, Mapping[str, Any]]) -> str:
    forward = forward_of(case.component) or case.component
    row = [name for name in call.get(forward, ()) if not keyword.iskeyword(name)]
    names = row if forward in call else [name for name in _inputs(case) if name != "cotangent"]
    return f"; {forward} is called as {forward}({', '.join(f'{name}=...' for name in names)})"


def _inputs(case: Case) -> list[str]:
    """Returns the arguments of the call: the outermost names of nested ones."""
    return list(dict.fromkeys(name.partition(".")[0] for name in case.inputs))
