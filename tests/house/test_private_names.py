"""Private and unstable framework names are used only in each port's `framework.py`, which lists them as `PRIVATE`."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from import_graph import HOUSE, PORTS, files, tree_of
from test_house import FRAMEWORKS

UNSTABLE = re.compile(
    r"torch\.ops(?!\.impl_torch)\.|torch\.fx\.experimental|torch\.distributed\.distributed_c10d|jax\.(extend|interpreters)|jaxlib"
    r"|tensorflow\.python|keras\.src|.*\._(?!_)"
)
PUBLIC = {"_replace", "_asdict", "_fields", "_make"}  # attributes of NamedTuple
ASKING = ("getattr", "setattr", "hasattr", "delattr")


def imported(path: Path) -> dict[str, str]:
    """Returns the full dotted names of a file's imports from frameworks, by their local names."""
    found = {}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else "" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    named = {name: full or name for name, full in found.items()}
    return {name: full for name, full in named.items() if full.partition(".")[0] in FRAMEWORKS}


def listed(package: Path) -> Mapping[str, str]:
    """Returns a port's `PRIVATE`."""
    for node in tree_of(package / "framework.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PRIVATE":
            return ast.literal_eval(node.value)
    return {}


def defined(paths: list[Path]) -> set[str]:
    """Returns the names of functions, classes, variables and attributes of `self` that the files define."""
    found = set()
    for node in (node for path in paths for node in ast.walk(tree_of(path))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(getattr(node, "attr", "") or getattr(node, "id", ""))
    return found


def private(package: Path) -> Iterator[tuple[str, str]]:
    """Yields (file, name) of each use of a private or unstable name: a dotted name, or `.name` of an object, a definition or a string."""
    paths = sorted(package.rglob("*.py"))
    theirs = {name.rpartition(".")[2] for name in listed(package)}
    own = defined(paths) - theirs | PUBLIC
    for path in paths:
        file, names, nodes = path.relative_to(package).as_posix(), imported(path), [*ast.walk(tree_of(path))]
        yield from ((file, full) for full in names.values() if UNSTABLE.match(full))
        inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        for node in nodes:
            dotted = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            root, _, rest = dotted.partition(".")
            if root in names and re.fullmatch(r"[\w.]+", rest):
                full = f"{names[root]}.{rest}"
                if id(node) not in inner and UNSTABLE.match(full):
                    yield file, full
            elif isinstance(node, ast.Attribute) and _is_foreign(node.attr, own - ({node.attr} if dotted.startswith("super()") else set())):
                yield file, f".{node.attr}"
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ASKING and isinstance(node.args[1], ast.Constant):
                if _is_foreign(node.args[1].value, own):
                    yield file, f".{node.args[1].value}"
            elif (getattr(node, "name", None) or getattr(node, "value", None)) in theirs:
                yield file, f".{getattr(node, 'name', None) or node.value}"


def _is_foreign(name: str, own: set[str]) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in own


def _is_of(name: str, one: str) -> bool:
    """Whether a use belongs to a listed name."""
    return f"{name}.".startswith((f"{one}.", f".{one.rpartition('.')[2]}."))


@pytest.mark.parametrize("package", PORTS)
def test_private_names_are_used_in_the_framework_file_alone_and_all_of_them_are_listed(package: str) -> None:
    found, names = [*private(HOUSE / package)], listed(HOUSE / package)
    assert files(package) and names and all(names.values())
    assert not {(file, name) for file, name in found if file != "framework.py"}
    used = {name for _, name in found}  # importing a module whose names are listed counts as a use
    assert not {name for name in used if not any(_is_of(name, one) or one.startswith(f"{name}.") for one in names)}
    assert not {one for one in names if not any(_is_of(name, one) for name in used)}


LISTED = {"framework.py": 'import torch\nPRIVATE = {"torch.nn.Module._apply": "..."}\n'}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import torch\ntorch._foreach_mul([], 2)", "torch._foreach_mul"),
        ("from torch._dynamo import mark_dynamic", "torch._dynamo.mark_dynamic"),
        ("import torch.fx.experimental.symbolic_shapes as shapes", "torch.fx.experimental.symbolic_shapes"),
        ("def f(x):\n    from torch.utils import _pytree", "torch.utils._pytree"),
        ("import torch\ntorch.ops.onednn.qlinear_prepack(x)", "torch.ops.onednn.qlinear_prepack"),
        ("from jax._src import core", "jax._src.core"),
        ("from jax import extend", "jax.extend"),
        ("import tensorflow as tf\ntf.python.ops", "tensorflow.python.ops"),
        ("from tensorflow.python.framework import ops", "tensorflow.python.framework.ops"),
        ("from keras.src import backend", "keras.src.backend"),
        ("class Layer(Module):\n    def _apply(self, fn): ...", "._apply"),
        ("class Layer(Module):\n    def _own(self): return super()._own()", "._own"),
        ("def f(module): return module._forward_hooks", "._forward_hooks"),
        ("class Layer(Module):\n    def f(self): return self._tracker", "._tracker"),
        ("def f(x): return getattr(x, '_keras_mask', None)", "._keras_mask"),
        ("import torch\nclass Layer(Module):\n    def f(self):\n        self._own = torch.ops.impl_torch.f\n        return self._own", ""),
    ],
)
def test_a_planted_use_of_a_private_name_is_found(code: str, name: str, tmp_path: Path) -> None:
    for file, text in (LISTED | {"layer.py": code}).items():
        (tmp_path / file).write_text(text)
    assert {found for file, found in private(tmp_path) if file == "layer.py"} == ({name} if name else set())
