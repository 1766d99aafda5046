"""Loads a port and runs cases on it."""

import dataclasses
import importlib
import inspect
import os
import sys
from collections import UserDict
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from reference_numpy import parameters
from reference_numpy.strategy import Strategy
from reference_numpy.suggestions import known

from ...common.backends import PORTS, unavailable
from ...common.extras import MissingBackend
from ...common.reading import read_bytes
from ...files.artefacts.kinds import kind_of
from ..case import DTYPES, Case, pinned
from ..expectation.components import COMPONENTS, forward_of
from ..status import undefined
from .signature import nothing

SKIP = "skip_padding"  # an argument of whole models that few ports support
ENTRY_POINTS = "rosettaformer.ports"  # entry-point group in which packages register ports
STRATEGY = "strategy."  # prefix of a strategy's fields among a case's inputs
FRAMEWORKS = tuple(PORTS)  # the values of a port's `framework`


class Unsupported(Exception):
    """The framework has no kernel for this dtype and device. The message is the operation's name."""


class NotCovered(Exception):
    """The port lacks the component or does not support the case. The message is the reason."""


class NotShown(Exception):
    """An exported model has no input, or no room, for the case. The message says which."""


class NotLoaded(Exception):
    """The checkpoint failed to load for an earlier case, which reported the error."""


class _Inputs(UserDict[str, Any]):
    """The inputs of a case for a function. `taken` collects the names that it has read."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        super().__init__(inputs)
        self.taken: set[Any] = set()

    def __getitem__(self, name: str) -> Any:
        self.taken.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.taken.add(name)
        return super().__contains__(name)


class Port:
    """A port, loaded by its name. Runs cases through its own functions or through an adapter.

    name: one of `PORTS`, an entry point of the group `rosettaformer.ports`, the path of a Python
    file, or an importable module.

    The module defines functions named after components; each takes a case and returns an array, or
    a mapping from name to array. Or it sets `framework` and defines `components`, a mapping from
    component to `build(config, dtype)`, and `weights`, the names and axes of its parameters
    (`names.Names`); then the framework computes the gradients (`layer_norm_vjp`). Optional: `call`
    (names of the modules' arguments, `adapters.call_mapping`), `modes`, `config` (config fields
    with a fixed value), `suite` (the suite release it pins), `dtypes`, and `module_paths` (rows of
    two for any outermost component). docs/ports.md describes the file.

    A file with `load` and none of these is the port of a whole model (`adapters.whole_model`).
    Functions in it that have a component's name but do not take a case are its helpers. An exported
    model is a port too: see `adapters.artefact`.

    Raises MissingBackend if a framework is not installed or cannot be imported, and ValueError if
    the name is not a valid port.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self.module, self.adapter = _opened(name)
        except Exception as error:
            if reason := unavailable(error):
                raise MissingBackend(reason) from None
            raise
        self.components = getattr(self.adapter, "components", None) or _components(self.module)
        self.modes = _names("modes", getattr(self.module, "modes", ("eager",)))
        self.dtypes = known("dtype", _names("dtypes", getattr(self.module, "dtypes", DTYPES)), DTYPES)
        self.config: Mapping[str, Any] = getattr(self.module, "config", {})
        if not isinstance(self.config, Mapping) or not all(isinstance(field, str) for field in self.config):
            raise ValueError(f"config must be a mapping from config field to its fixed value; got {self.config!r}")
        self.pinned = {"suite": pinned(self.module.suite)} if hasattr(self.module, "suite") else {}

    def describe(self) -> dict[str, Any]:
        """Returns what the port covers, with versions, devices and matmul precision."""
        framework = getattr(self.module, "framework", "")
        own = {
            "framework": framework,
            "loaded": framework or _loaded(),
            "modes": self.modes,
            "config": dict(self.config),
            "dtypes": self.dtypes,
            "components": self.components,
            "on_mesh": callable(getattr(self.module, "on_mesh", None)) or getattr(self.adapter, "takes_mesh", False),
            "processes": _meshes().by_processes(self.module),
        }
        shared = {"shared": self.adapter.names.shared} if hasattr(self.adapter, "names") else {}
        return own | self.pinned | ({} if self.adapter is None else self.adapter.describe()) | shared

    def answer(self, case: Case) -> Any:
        """Returns the outputs for the case. Raises NotCovered if the port does not support it.

        A case on a mesh goes unchanged to the file's `on_mesh`, or to the port of a whole model. A
        function gets dotted inputs nested, like the arguments of the reference's function. A
        search's strategy has all fields, with defaults filled in.
        """
        case = _filled(case)
        if case.mesh and not getattr(self.adapter, "takes_mesh", False):
            return _meshes().answer(self.module, case)
        if case.component not in self.components:
            raise NotCovered(undefined(case.component))
        if self.adapter is not None:
            return self.adapter.run(case)
        function, nested = getattr(self.module, case.component), parameters.nest(case.inputs)
        if not nested.get(SKIP):
            return function(dataclasses.replace(case, inputs=nested))
        result = function(dataclasses.replace(case, inputs=(inputs := _Inputs(nested))))
        if SKIP not in inputs.taken:
            raise NotCovered(f"the port's {case.component} does not use {SKIP}")
        return result

    def trace(self, case: Case, forces: Any = (None,)) -> Any:
        """Returns the inputs and outputs of the port's modules, one run per force.

        Raises NotCovered if the port consists of functions, which cannot be traced.
        """
        if not hasattr(self.adapter, "trace"):
            raise NotCovered("the port consists of functions; only modules of a framework can be traced")
        if case.component not in self.components:
            raise NotCovered(undefined(case.component))
        return self.adapter.trace(case, forces)


def _filled(case: Case) -> Case:
    """Returns the case with all fields of its strategy, if it has one."""
    given = {name: value for name, value in case.inputs.items() if name.startswith(STRATEGY)}
    if not given:
        return case
    strategy = Strategy(**{name.removeprefix(STRATEGY): value for name, value in given.items()})
    filled = {f"{STRATEGY}{name}": value for name, value in dataclasses.asdict(strategy).items()}
    return dataclasses.replace(case, inputs={**case.inputs, **filled})


def _opened(name: str) -> tuple[Any, Any]:
    """Returns a port's module and its adapter; None if it has no adapter."""
    if not kind_of(Path(name)):
        module = _load(name)
        return module, _adapter(module)
    return ModuleType("artefact"), importlib.import_module(".adapters.artefact", __package__).Adapter(Path(name))


def _load(name: str) -> Any:
    if name in PORTS:
        return importlib.import_module(PORTS[name][0])
    for point in entry_points(group=ENTRY_POINTS, name=name):
        return point.load()
    return load_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)


def load_file(path: Path) -> Any:
    """Loads the file as a module named after it. As when it is run, its folder is importable."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    loaded = getattr(sys.modules.get(path.stem), "__file__", None)
    if path.stem in sys.modules and (loaded is None or not os.path.exists(loaded) or not path.samefile(loaded)):
        raise ValueError(f"{path.name} has the name of a Python module that is already imported: rename the file")
    code = compile(read_bytes(path), path.resolve(), "exec")  # a cached .pyc would miss edits within a second
    sys.path.insert(0, str(path.resolve().parent))
    module = ModuleType(path.stem)
    module.__file__ = str(path.resolve())
    sys.modules[path.stem] = module
    exec(code, module.__dict__)
    return module


def _adapter(module: Any) -> Any:
    """Returns the adapter of the port's framework or whole model; None for a port of functions."""
    if not hasattr(module, "framework"):
        whole = callable(getattr(module, "load", None)) and not any(_of_cases(getattr(module, name, None)) for name in COMPONENTS)
        return importlib.import_module(".adapters.whole_model", __package__).Adapter(module) if whole else None
    (framework,) = known("framework", (module.framework,), FRAMEWORKS)
    if not isinstance(getattr(module, "components", None), Mapping):
        raise ValueError('a port with `framework` also needs `components`, such as {"layer_norm": lambda config, dtype: MyNorm(config)}')
    return importlib.import_module(f".adapters.{framework}", __package__).Adapter(module)


def _meshes() -> Any:
    return importlib.import_module(".adapters.meshes", __package__)


def _of_cases(function: Any) -> bool:
    """Whether a function takes a case. Next to `load` it may be a helper such as `softmax(x)`."""
    try:
        return callable(function) and [*inspect.signature(function).parameters] == ["case"]
    except (TypeError, ValueError):
        return False


def _components(module: Any) -> tuple[str, ...]:
    """Returns the components that the port defines, in the order of the report."""
    if hasattr(module, "framework"):
        known("component", module.components, COMPONENTS)  # the framework provides the gradients
        found = tuple(name for name in COMPONENTS if name in module.components or forward_of(name) in module.components)
    else:
        found = tuple(name for name in COMPONENTS if callable(getattr(module, name, None)))
    if not found and not callable(getattr(module, "on_mesh", None)):
        raise ValueError(nothing(module))
    return found


def _names(what: str, value: Any) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{what} must be a name or a list of names; got {value!r}")
    return names


def _loaded() -> str:
    """Returns the only framework that the process has imported; "" otherwise."""
    found = [name for name, (_, needs, _) in PORTS.items() if needs in sys.modules]
    return found[0] if len(found) == 1 else ""
