"""Checks ports of the Transformer against a NumPy reference.

    import rosettaformer

    rosettaformer.check("my_port.py", like="qwen3").conforms
    rosettaformer.diagnose("my_port.py", like="qwen3").findings
    rosettaformer.compare("a.py:Model", "b.py:Model")["verdict"]

Functions that need a package that is not installed raise MissingBackend. Importing rosettaformer
loads no framework.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparison.comparing import compare
    from .judge.checking import check
    from .judge.diagnosing import diagnose

__all__ = ["check", "compare", "diagnose"]

__version__: str

_FUNCTIONS = {"check": "judge.checking", "compare": "comparison.comparing", "diagnose": "judge.diagnosing"}


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version(__name__)
