"""Ports: how the judge finds one and puts a case to it."""

import importlib
from types import ModuleType
from typing import Any

from .case import Case

__all__ = ["PORTS", "MissingBackend", "NotCovered", "Port", "Unsupported"]

# name -> (module that the judge calls, framework module that it needs, how to install it)
PORTS = {
    "torch": ("impl_torch.port", "torch", "pip install 'rosettaformer[torch]'"),
    "tf": ("impl_tf.port", "tensorflow", "pip install 'rosettaformer[tf-cpu]'  (or [tf] on a GPU)"),
    "jax": ("impl_jax.port", "jax", "pip install 'rosettaformer[jax]'"),
}


class Unsupported(Exception):
    """A framework has no kernel for this operation in this dtype on this device; the message is the operation's name."""


class NotCovered(Exception):
    """The port does not define the component."""


class MissingBackend(Exception):
    """The framework that the port needs is not installed; the message says how to install it."""


class Port:
    """A port, loaded by its name in `PORTS` or as an importable module: answers cases, by its own functions or through an adapter.

    A port is a module that defines functions named after components, each taking a case and returning arrays; or one that names its
    `framework` and gives `components`, a mapping from component to `build(config, dtype)`, and `weights`, a table of native names and
    axes. Raises MissingBackend where its framework is not installed.
    """

    def __init__(self, name: str) -> None:
        module_name, framework, install = PORTS.get(name, (name, "", ""))
        self.name = name
        try:
            self.module: ModuleType = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if install and error.name and error.name.partition(".")[0] in (framework, "keras", "flax"):
                raise MissingBackend(install) from None
            raise
        self.adapter: Any = None
        if hasattr(self.module, "framework"):
            self.adapter = importlib.import_module(f".adapters.{self.module.framework}", __package__).Adapter(self.module)

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that the port can run in; the first is its default."""
        return getattr(self.module, "modes", ("eager",))

    def describe(self) -> dict[str, Any]:
        """Versions, devices and matmul precision, as the framework's adapter reports them."""
        return self.adapter.describe() if self.adapter is not None else {}

    def answer(self, case: Case) -> Any:
        """The port's outputs for the case; raises NotCovered where it does not define the component."""
        if self.adapter is not None and case.component in self.module.components:
            return self.adapter.run(case)
        if self.adapter is None and hasattr(self.module, case.component):
            return getattr(self.module, case.component)(case)
        raise NotCovered(f"the port does not define {case.component}")
