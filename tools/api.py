"""Writes docs/api.md, the index of public Python names, from their docstrings.

python tools/api.py
"""

import ast
import inspect
from pathlib import Path
from types import ModuleType

from evidence import HOUSE, wrapped
from files import PORTS, REFERENCE, modules

import rosettaformer
from rosettaformer import ports, pytest_plugin
from rosettaformer.files import checkpoints

__all__ = ["OWN", "PAGE", "page", "public"]

PAGE = HOUSE / "docs" / "api.md"
OWN = (rosettaformer, ports, checkpoints, pytest_plugin)
HEAD = """# The public Python names

This page lists the public names of every package, with the first sentence of each docstring; other
names may change at any time. Made by `make docs`.

```python
import rosettaformer

summary = rosettaformer.check("torch", components=["softmax"], dtypes=["float32"])
print(rosettaformer.__version__, summary.conforms)
```
"""
NEXT = """Next: [ports.md](ports.md) uses the names for port files, [checkpoints.md](checkpoints.md) those for
checkpoints, [ci.md](ci.md) those for pytest, and [models.md](models.md) those of the four packages.
"""


def public(path: Path) -> list[str]:
    """Returns the names in a file's `__all__`."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


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


def _package() -> list[str]:
    """The names of the four packages: those of the reference, and which of the ports have them too."""
    lines = [f"## `{REFERENCE}`, `{'`, `'.join(PORTS)}`", "",
             "A name is imported from its file: `from impl_torch.attention import MultiHeadAttention`. The ports",
             "have the reference's names in the same files; the names after `+` are only in ports.", ""]  # fmt: skip
    for name, path in modules(REFERENCE).items():
        own = public(path)
        others = [each for port in PORTS if name in modules(port) for each in public(modules(port)[name]) if each not in own]
        shared, more = (", ".join(f"`{each}`" for each in dict.fromkeys(names)) for names in (own, others))
        lines.append(wrapped(f"- [{name}](../{REFERENCE}/{name}.py): {shared}{f' + {more}' if more else ''}"))
    return lines


def page() -> str:
    """The index."""
    parts = [HEAD, *("\n".join(lines) + "\n" for lines in (*map(_own, OWN), _package())), NEXT]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
