"""Writes docs/api.md, the index of public Python names, from their docstrings.

python tools/api.py
"""

import inspect
from types import ModuleType

from evidence import HOUSE, wrapped

import rosettaformer
from rosettaformer import ports, pytest_plugin
from rosettaformer.files import checkpoints

PAGE = HOUSE / "docs" / "api.md"
OWN = (rosettaformer, ports, checkpoints, pytest_plugin)
HEAD = """# The public Python names

This page lists the public names of rosettaformer, with the first sentence of each docstring; other
names may change at any time. Those of the four packages are in the `__all__` of each file, and a
port has the names of the reference in a file of the same name. Made by `make docs`.

```python
import rosettaformer

summary = rosettaformer.check("torch", components=["softmax"], dtypes=["float32"])
print(rosettaformer.__version__, summary.conforms)
```
"""
NEXT = """Next: [ports.md](ports.md) uses the names for port files, [checkpoints.md](checkpoints.md) for
checkpoints, [ci.md](ci.md) for pytest, and [models.md](models.md) for the four packages.
"""


def first(text: str | None) -> str:
    """The first sentence of a docstring."""
    sentence = " ".join((text or "").partition("\n\n")[0].split())
    return sentence.partition(". ")[0].rstrip(".:")


def _own(module: ModuleType) -> list[str]:
    """The names of a module that users import."""
    lines = [f"## `{module.__name__}`", "", wrapped(first(module.__doc__) + "."), ""]
    for name in module.__all__:
        value = getattr(module, name)
        takes = callable(value) and not inspect.isclass(value)
        arguments = f"({', '.join(inspect.signature(value).parameters)})" if takes else ""
        lines.append(wrapped(f"- `{name}{arguments}`: {first(value.__doc__) if callable(value) else 'a constant'}"))
    return lines


def page() -> str:
    """The index."""
    parts = [HEAD, *("\n".join(lines) + "\n" for lines in map(_own, OWN)), NEXT]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
