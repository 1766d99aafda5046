"""Makes docs/api.md, the index of the public Python names, from their docstrings.

python tools/api.py
"""

import ast
import inspect
from pathlib import Path
from types import ModuleType

from evidence import HOUSE
from files import PORTS, REFERENCE, modules

import rosettaformer
from rosettaformer import ports, pytest_plugin
from rosettaformer.files import checkpoints

__all__ = ["OWN", "PAGE", "page", "public"]

PAGE = HOUSE / "docs" / "api.md"
OWN = (rosettaformer, ports, checkpoints, pytest_plugin)
HEAD = """# The public Python names

{made}
Names that are not on this page may change at any time. `rosettaformer.__version__` is the version of the package.
More: [port files](ports.md),
[checkpoints](checkpoints.md), [pytest](ci.md), [the four implementations](models.md).
"""


def public(path: Path) -> list[str]:
    """The names of a file's `__all__`."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def first(text: str | None) -> str:
    """The first sentence of a docstring, for a cell."""
    sentence = " ".join((text or "").partition("\n\n")[0].split())
    return sentence.partition(". ")[0].rstrip(".:").replace("|", "\\|")


def _own(module: ModuleType) -> list[str]:
    """What users of the judge import."""
    lines = [f"## `{module.__name__}`", "", first(module.__doc__) + ".", "", "| name | what it is |", "|---|---|"]
    for name in module.__all__:
        value = getattr(module, name)
        takes = callable(value) and not inspect.isclass(value)
        arguments = f"({', '.join(inspect.signature(value).parameters)})" if takes else ""
        lines.append(f"| `{name}{arguments}` | {first(value.__doc__) if callable(value) else 'a constant'} |")
    return lines


def _package() -> list[str]:
    """The names of the four packages: those of the reference, and which of the ports have them too."""
    lines = [f"## `{REFERENCE}`, `{'`, `'.join(PORTS)}`", "",
             "A name is imported from its file: `from impl_torch.attention import MultiHeadAttention`.",
             "The ports have the reference's names in the same files, and a few of their own.", "",
             "| file | names in all four | also in ports |", "|---|---|---|"]  # fmt: skip
    for name, path in modules(REFERENCE).items():
        own = public(path)
        others = [each for port in PORTS if name in modules(port) for each in public(modules(port)[name]) if each not in own]
        cells = [", ".join(f"`{each}`" for each in dict.fromkeys(names)) for names in (own, others)]
        lines.append(f"| [{name}](../{REFERENCE}/{name}.py) | {' | '.join(cells)} |")
    return lines


def page() -> str:
    """The index."""
    parts = [HEAD.format(made="Made by `make docs`."), *("\n".join(_own(module)) + "\n" for module in OWN), "\n".join(_package()) + "\n"]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
