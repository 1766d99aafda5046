"""How the judge finds a port and runs a case on it."""

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

SKIP = "skip_padding"  # an argument of whole models that few ports have
ENTRY_POINTS = "rosettaformer.ports"  # the group in which an installed package names its ports
STRATEGY = "strategy."  # how the names of a strategy's fields begin in a case
FRAMEWORKS = tuple(PORTS)  # what a port may name as its `framework`


class Unsupported(Exception):
    """A framework has no kernel for this operation in this dtype on this device; the message is the operation's name."""


class NotCovered(Exception):
    """The port does not define the component, or cannot express the case; the message is the reason."""


class NotShown(Exception):
    """An artefact has no input, or no room, for the case; the message says which."""


class NotLoaded(Exception):
    """The model's folder could not be loaded for an earlier case, whose answer says why; the message says that much."""


class _Inputs(UserDict[str, Any]):
    """The inputs of a case for a function; `taken` holds the names of those that the function has read."""

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
    """A port, loaded by its name: answers cases, by its own functions or through an adapter.

    name: one of `PORTS`, an entry point of the group `rosettaformer.ports`, the path of a Python file, or an importable module.
    The loaded module defines functions named after components, each taking a case and returning an array, or arrays by name; or it names
    its `framework` and gives `components`, a mapping from component to `build(config, dtype)`, and `weights`, one table of native names and
    axes or one per component (`names.Names`); gradients (`layer_norm_vjp`) are then the framework's own. Optional are `call` (the arguments
    that modules have of their own, `adapters.calls`), `modes`, `config` (the config fields that the port fixes), `suite` (the suite
    release that it pins), `dtypes` (the supported ones) and `module_paths` (rows of two for any outermost component).
    docs/ports.md describes the file. A file with `load` and none of these is the port of a whole model (`adapters.whole_model`);
    functions there that are named after components and do not take a case are its helpers. An artefact is a port, too: see
    `adapters.artefact`.
    Raises MissingBackend if a framework is not installed or cannot be imported, and ValueError if the name is not a valid port.
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
            raise ValueError(f"config must map names of config fields to the values that the port fixes; got {self.config!r}")
        self.pinned = {"suite": pinned(self.module.suite)} if hasattr(self.module, "suite") else {}

    def describe(self) -> dict[str, Any]:
        """Returns what the port covers, and versions, devices and matmul precision as the adapter reports them."""
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
        """Returns the port's outputs for the case; raises NotCovered if the port does not define the component or ignores `skip_padding`.

        A case on a mesh is answered by `on_mesh` of the file, which is given it as it is, or by the port of a whole model. A function is
        given a case whose dotted input names are nested, as the arguments of the reference's function are. A search's strategy has every
        field, the defaults filled in.
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
            raise NotCovered(f"the port's {case.component} takes no {SKIP}")
        return result

    def trace(self, case: Case, forces: Any = (None,)) -> Any:
        """Returns the inputs and outputs of the port's parts, as the framework's adapter records them from the modules: one run for each
        force.

        Raises NotCovered if the port consists of functions, which show nothing of their inside.
        """
        if not hasattr(self.adapter, "trace"):
            raise NotCovered("the port gives functions, and only modules of a framework can be traced")
        if case.component not in self.components:
            raise NotCovered(undefined(case.component))
        return self.adapter.trace(case, forces)


def _filled(case: Case) -> Case:
    """Returns the case with every field of its strategy, if it has one."""
    given = {name: value for name, value in case.inputs.items() if name.startswith(STRATEGY)}
    if not given:
        return case
    strategy = Strategy(**{name.removeprefix(STRATEGY): value for name, value in given.items()})
    filled = {f"{STRATEGY}{name}": value for name, value in dataclasses.asdict(strategy).items()}
    return dataclasses.replace(case, inputs={**case.inputs, **filled})


def _opened(name: str) -> tuple[Any, Any]:
    """Returns the module of a port and its adapter, None if it has none."""
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
    """Loads the file as a module named after it, with its folder importable, as when it is run."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    loaded = getattr(sys.modules.get(path.stem), "__file__", None)
    if path.stem in sys.modules and (loaded is None or not os.path.exists(loaded) or not path.samefile(loaded)):
        raise ValueError(f"a port's file must not have the name of a module that Python already has: {path.name}")
    code = compile(read_bytes(path), path.resolve(), "exec")  # not from a compiled copy, which does not notice edits within a second
    sys.path.insert(0, str(path.resolve().parent))
    module = ModuleType(path.stem)
    module.__file__ = str(path.resolve())
    sys.modules[path.stem] = module
    exec(code, module.__dict__)
    return module


def _adapter(module: Any) -> Any:
    """Returns the adapter of the framework that the port names, or of a whole model; None for a port of functions."""
    if not hasattr(module, "framework"):
        whole = callable(getattr(module, "load", None)) and not any(_of_cases(getattr(module, name, None)) for name in COMPONENTS)
        return importlib.import_module(".adapters.whole_model", __package__).Adapter(module) if whole else None
    (framework,) = known("framework", (module.framework,), FRAMEWORKS)
    if not isinstance(getattr(module, "components", None), Mapping):
        raise ValueError("a port that names its framework must give components, a mapping from component to build(config, dtype)")
    return importlib.import_module(f".adapters.{framework}", __package__).Adapter(module)


def _meshes() -> Any:
    return importlib.import_module(".adapters.meshes", __package__)


def _of_cases(function: Any) -> bool:
    """Whether a function answers cases: in the file of a whole model one of a component's name may be a helper, such as `softmax(x)`."""
    try:
        return callable(function) and [*inspect.signature(function).parameters] == ["case"]
    except (TypeError, ValueError):
        return False


def _components(module: Any) -> tuple[str, ...]:
    """Returns the components that the port defines, in the order of the report."""
    if hasattr(module, "framework"):
        known("component", module.components, COMPONENTS)  # the framework differentiates each of them, too
        found = tuple(name for name in COMPONENTS if name in module.components or forward_of(name) in module.components)
    else:
        found = tuple(name for name in COMPONENTS if callable(getattr(module, name, None)))
    if not found and not callable(getattr(module, "on_mesh", None)):
        raise ValueError(nothing(module))
    return found


def _names(what: str, value: Any) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{what} must be a name or several; got {value!r}")
    return names


def _loaded() -> str:
    """Returns the name of the framework that the process has loaded; empty if there are several or none."""
    found = [name for name, (_, needs, _) in PORTS.items() if needs in sys.modules]
    return found[0] if len(found) == 1 else ""
