"""The rules of the repository: import directions, one public surface in four packages, every decision written and tested."""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from import_graph import HOUSE, PACKAGES, PORTS, arrows, circle, files, imported_packages, imports, reduced, rooms, tree_of

FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "jaxlib", "flax", "optax")
INSIDE = {"__init__", "arithmetic", "arrays", "fields", "int8", "presets"}  # only in the reference
# The layers of a port, lowest first; every import goes to a lower layer or stays in its own.
FLOORS = ("kernels", "pages", "programs", "doors")
LEAVES = ("__init__", "framework", "precision", "projection", "mask", "softmax", "dropout", "values")  # pages that kernels may import
DOORS = ("decoding", "training", "port")
DOORS_OF_USERS = {f"rosettaformer/{name}.py" for name in ("ports", "files/checkpoints/__init__", "pytest_plugin")}
UNPADDING = re.compile(r"[Pp]acking|[Uu]npad|PaddedMask|in_rows|\bTokens\b(?!,? [a-z])")  # not sentences that begin with "Tokens"
DEFINED = ast.FunctionDef | ast.ClassDef
CALLS = ("forward", "call", "__call__")  # computing methods, by framework
ALONE = ("attending", "memory")  # values of the reference that a port takes as several arguments
OTHERWISE = ("adam", "norm")  # an optimizer of the framework, and the function that makes a norm from a config
PAGES_OF_TWINS = ("attention", "layers", "stacks", "transformer", "encoder_only", "decoding", "cache")
OF_ALL_ROWS = ("beams",)  # twins whose functions take the tensors of all rows, while the reference has one object per row


def public(path: Path) -> list[str] | None:
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(getattr(node, "target", None) or node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def stems(package: str) -> set[str]:
    """Returns the files of a package by path, except those of `programs`, which differ by framework."""
    found = {path.relative_to(HOUSE / package).with_suffix("").as_posix() for path in files(package)}
    return {stem for stem in found if not stem.startswith("programs/")}


def shared() -> set[str]:
    """Returns the reference's modules that a port imports."""
    pairs = {pair for package in PORTS for path in files(package) for pair in imports(path)}
    names = {f"{module}.{name}".split(".")[1] for module, name in pairs if module.partition(".")[0] == "reference_numpy"}
    return names & stems("reference_numpy")


TWINS = sorted(stems("reference_numpy") - INSIDE - shared())


def test_the_reference_imports_numpy_alone() -> None:
    assert files("reference_numpy")
    assert imported_packages("reference_numpy") <= sys.stdlib_module_names | {"numpy"}


@pytest.mark.parametrize("package", PORTS)
def test_no_port_imports_another_nor_the_judge_and_imports_run_down(package: str) -> None:
    """kernels < pages < programs < doors, including imports in functions and under TYPE_CHECKING."""
    assert not imported_packages(package) & ({"rosettaformer", *PORTS} - {package})
    assert not climbing(HOUSE / package)
    assert not circle(HOUSE / package, lazy=True)


@pytest.mark.parametrize("package", [*PACKAGES, "rosettaformer"])
def test_what_is_installed_does_not_import_the_benchmarks(package: str) -> None:
    assert "bench" not in imported_packages(package)


@pytest.mark.parametrize("package", PORTS)
def test_ports_have_the_same_files_a_twin_for_each_of_the_reference_s_and_take_no_math_from_it(package: str) -> None:
    assert len(TWINS) > 20
    assert {*TWINS} <= stems(package) == stems(PORTS[0])
    assert not shared() & (stems(package) | INSIDE)


def loaded(modules: str, *names: str) -> str:
    """Returns which of these names are loaded in a process that imported only these modules."""
    script = f"import sys, {modules}; print([name for name in {names!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", script], cwd=HOUSE, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("module", ["reference_numpy", "rosettaformer", "rosettaformer.cli", *PORTS])
def test_importing_a_package_or_the_command_loads_no_framework(module: str) -> None:
    assert loaded(module, *FRAMEWORKS) == "[]"


def test_importing_the_whole_reference_loads_no_framework_and_not_the_judge() -> None:
    modules = ", ".join(f"reference_numpy.{path.stem}" for path in files("reference_numpy") if path.stem != "__init__")
    assert loaded(modules, *FRAMEWORKS, "rosettaformer", *PORTS) == "[]"


def floor(module: str) -> str:
    """Returns the layer of a port that contains a module."""
    first = module.partition(".")[0] or "__init__"
    return first if first in FLOORS else "kernels" if first in LEAVES else "doors" if first in DOORS else "pages"


def climbing(folder: Path) -> list[str]:
    """Returns the imports of a port that go to a higher layer."""
    height = {name: index for index, name in enumerate(FLOORS)}
    pairs = arrows(folder, lazy=True)
    return [f"{module} imports {imported}" for module, imported in pairs if height[floor(module)] < height[floor(imported)]]


@pytest.mark.parametrize("package", ["reference_numpy", "rosettaformer", "bench", *PORTS])
def test_no_module_is_in_a_circle_of_imports(package: str) -> None:
    """Each can be imported first: a module depends on its top-level imports and on the packages around them."""
    assert not circle(HOUSE / package, lazy=False)


SOUND = {
    "__init__.py": "from reference_numpy import preset",
    "mask.py": "",
    "kernels/attention.py": "from .. import mask",
    "attention.py": "from . import mask\nfrom .kernels import attention as kernel",
    "layers.py": "from .attention import attend",
    "programs/search.py": "from .. import layers\nfrom ..kernels.attention import chunk",
    "decoding.py": "from .programs import search\nfrom .layers import run",
}


@pytest.mark.parametrize(
    ("changes", "climbs", "in_circle"),
    [
        ({}, [], set()),
        ({"kernels/attention.py": "import port.embedding", "embedding.py": ""}, ["kernels.attention imports embedding"], set()),
        ({"mask.py": "from .kernels import attention"}, [], {"mask", "kernels.attention"}),
        ({"layers.py": "def run():\n    from .programs import search"}, ["layers imports programs.search"],
         {"layers", "programs.search"}),
        ({"layers.py": "if TYPE_CHECKING:\n    from .decoding import Searcher"}, ["layers imports decoding"],
         {"layers", "decoding", "programs.search"}),
    ],
)  # fmt: skip
def test_an_import_that_runs_up_and_a_circle_are_found(
    changes: Mapping[str, str], climbs: list[str], in_circle: set[str], tmp_path: Path
) -> None:
    for name, text in {**SOUND, **changes}.items():
        (tmp_path / "port" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "port" / name).write_text(text)
    assert climbing(tmp_path / "port") == climbs
    found = circle(tmp_path / "port", lazy=True)
    assert bool(found) == bool(in_circle)
    assert set(found) <= in_circle


HOUSES = ("rosettaformer", *(f"rosettaformer/{room}" for room in ("commands", "common", "comparison", "files", "guide", "judge", "use")))
OF_READERS = ("guide.snippets", "snippets", "judge.templates", "templates")  # files with unrestricted imports


def test_the_application_has_seven_rooms() -> None:
    assert {path.parent.relative_to(HOUSE).as_posix() for path in HOUSE.glob("rosettaformer/*/__init__.py")} == {*HOUSES[1:]}


@pytest.mark.parametrize("house", HOUSES)
def test_imports_of_rooms_run_down(house: str) -> None:
    """The folders and loose modules of a package form no cycle, including imports in functions."""
    graph = rooms(HOUSE / house, OF_READERS)
    assert len(graph) > 1
    assert [*reduced(graph)]


def test_rooms_in_a_circle_are_found_and_arrows_by_way_of_a_third_left_out(tmp_path: Path) -> None:
    for name, text in {
        "high/a.py": "from ..middle import b\nfrom ..low import c",
        "middle/b.py": "from ..low import c",
        "low/c.py": "",
    }.items():
        (tmp_path / "house" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "house" / name).write_text(text)
    assert reduced(rooms(tmp_path / "house")) == {"high": ["middle"], "middle": ["low"], "low": []}
    (tmp_path / "house/low/d.py").write_text("def call():\n    from ..high import a")
    with pytest.raises(graphlib.CycleError):
        reduced(rooms(tmp_path / "house"))


def test_modules_know_nothing_of_the_reference_nor_of_the_judge() -> None:
    for path in files("rosettaformer/common/modules"):
        modules = {f"{module}." for module, _ in imports(path)}
        ours = {module for module in modules if module.startswith(("reference_numpy.", "rosettaformer."))}
        assert not [module for module in ours if not module.startswith("rosettaformer.common.modules.")], path.name


@pytest.mark.parametrize("package", PORTS)
def test_files_that_hold_the_model_use_no_private_name_of_another_object(package: str) -> None:
    """Private names of frameworks are only in `framework`; see test_private_names.py."""
    for path in {*(HOUSE / package).glob("*.py")} - {HOUSE / package / "framework.py"}:
        tree = tree_of(path)
        names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_private(node.attr)}
        private = {name for name in names if not re.fullmatch(r"(self|cls)\._\w+", name)}
        private |= {name for pair in imports(path) for name in ".".join(pair).split(".") if _is_private(name)}
        assert not private, path.relative_to(HOUSE)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def parameters(function: ast.FunctionDef) -> list[str]:
    given = function.args
    return [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs) if argument.arg not in ("self", "cls")]


def plain(name: str) -> str:
    """Converts a component's class name to its function name: LayerNorm is layer_norm."""
    return name.replace("_", "").lower()


def surface(path: Path) -> dict[str, list[str]]:
    """Returns the public functions, classes and methods of a file in order, by plain name, with their call parameters."""
    found: dict[str, list[str]] = {}
    for node in tree_of(path).body:
        if isinstance(node, DEFINED) and node.name in (public(path) or []):
            found[plain(node.name)] = parameters(node) if isinstance(node, ast.FunctionDef) else []
            for part in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(part, ast.FunctionDef) and (part.name in CALLS or not part.name.startswith("_")):
                    found[plain(node.name if part.name in CALLS else part.name)] = parameters(part)
    return found


@pytest.mark.parametrize("file", TWINS)
@pytest.mark.parametrize("package", PORTS)
def test_a_port_has_the_reference_s_names_and_parameters_in_its_order(package: str, file: str) -> None:
    """As functions, classes or methods. Derivatives that the frameworks compute are absent; a port may have further parameters."""
    reference, own = surface(HOUSE / "reference_numpy" / f"{file}.py"), surface(HOUSE / package / f"{file}.py")
    names = [name for name in reference if not name.endswith("vjp") and name not in ALONE]
    if file not in OF_ALL_ROWS:
        assert set(names) <= set(own)
    body = tree_of(HOUSE / package / f"{file}.py").body
    functions, classes = ({plain(node.name) for node in body if isinstance(node, kind)} for kind in (ast.FunctionDef, ast.ClassDef))
    for group in (functions | classes, {*own} - functions - classes):
        assert [name for name in own if name in names and name in group] == [name for name in names if name in own and name in group]
    held = {"parameters", "config", "rate"}  # stored in the module that is called, or passed
    for name in {*names} & {*own}:
        lacks = {*reference[name]} - {*own[name]} - held if name in functions - classes and name not in OTHERWISE else set()
        assert not lacks or file in OF_ALL_ROWS, f"{package}/{file}.py: {name} lacks {lacks}"
        common = [one for one in own[name] if one in reference[name]]
        assert common == [one for one in reference[name] if one in common], f"{package}/{file}.py: {name}"


# Hooks that a framework calls by these names
HOOKS = {"build", "compute_mask", "compute_output_shape", "export", "get_build_config", "get_config", "summary", "to"}
BY_HAND, MODULE = "an explicit derivative needs it", "a module in the ports"
KERAS = "a property of Keras has the name"
# page -> the steps without a twin, and why
ALONE_IN: dict[str, dict[str, str]] = {
    "attention": {"projection": MODULE, "rotated": "`rotary.rotated` in the ports", "rows": "`reshape` in the ports", "weights": KERAS,
                  "placed": "`query_key_norm` in the ports"},
    "layers": {"residual_in": MODULE, "residual_out": MODULE, "self_attention": MODULE, "cross_attention": MODULE, "network": MODULE,
               "input_norm": MODULE, "pairs": BY_HAND},
    "stacks": {"final_norm": MODULE, "attending": "a constructor decides it in the ports", "of_layer": "`dropout.part` in the ports",
               "layers": "tf.train.Checkpoint finds no layers in a list"},
    "transformer": {"encoder_output": "on the page of encoder-only models in the ports", "sides": "`check_ids` in the ports",
                    "memory": BY_HAND, "routes": BY_HAND, "logits": MODULE, "real_rows": "on the page of masks in the ports",
                    "add": BY_HAND, "inputs": KERAS},
    "decoding": {"read": "a program in the ports", "switches": "a program in the ports", "n_best": "on the page of beams in the ports",
                 "choose": "a program in PyTorch"},
    "cache": {"check_steps": "layers of Keras have no hooks that a step would pass by"},
}  # fmt: skip


def steps(package: str, page: str) -> list[str]:
    """Returns the functions and methods of a page in order, also private ones, by plain name; a callable class counts as a step itself."""
    found = []
    for node in tree_of(HOUSE / package / f"{page}.py").body:
        if isinstance(node, ast.FunctionDef):
            found.append(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
            found += [node.name if name in CALLS else name for name in methods]
    own = [name for name in found if not name.startswith("__") and name not in HOOKS and not name.endswith("_vjp")]
    return list(dict.fromkeys(map(plain, own)))


@pytest.mark.parametrize("page", PAGES_OF_TWINS)
def test_twins_have_the_same_steps_in_the_same_order(page: str) -> None:
    """A step of the reference is in a port, and one of a port is in the reference or both other ports, except for those listed."""
    of = {package: steps(package, page) for package in PACKAGES}
    alone = set()
    for package, own in of.items():
        others = [set(of[other]) for other in PORTS if other != package]
        alone |= {*own} - (set.union(*others) if package == "reference_numpy" else {*of["reference_numpy"]} | set.intersection(*others))
        for other in of.values():
            assert [step for step in own if step in other] == [step for step in other if step in own], package
    assert alone == {*map(plain, ALONE_IN.get(page, ()))}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_has_a_surface(package: str) -> None:
    """Ruff rejects undefined names in `__all__`."""
    without = {path.stem for path in files(package) if public(path) is None}
    assert without <= {"port", "__main__"}


def test_rosettaformer_lists_names_where_users_import_them_or_a_module_passes_them_on_and_underscores_are_private() -> None:
    for path in (*files("rosettaformer"), *files("bench")):
        if "snippets" in path.parts:  # code for readers of the guide
            continue
        imported = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ImportFrom)]
        names = {alias.name for node in imported for alias in node.names}
        listed, door = public(path), path.relative_to(HOUSE).as_posix() in DOORS_OF_USERS
        assert (listed is not None) == (door or bool(names & {*(listed or [])})), path.relative_to(HOUSE)
        own = {alias.name for node in imported if node.level for alias in node.names}
        assert not [name for name in own if name.startswith("_")], path.relative_to(HOUSE)


@pytest.mark.parametrize("package", PORTS)
def test_no_flag_says_that_an_argument_was_checked_and_one_line_of_attention_knows_of_unpadding(package: str) -> None:
    """The public method checks its arguments, then calls a method that does not."""
    for path in files(package):
        functions = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef)]
        flags = [function.name for function in functions if "checked" in parameters(function)]
        assert not flags, path.relative_to(HOUSE)
    # And the import for this line
    for path in (HOUSE / package).glob("*.py"):
        lines = [line for line in path.read_text().splitlines() if UNPADDING.search(line)]
        imported = [line for line in lines if line.startswith("from ")]
        allowed = 1 if path.stem == "attention" else 0
        assert path.stem in DOORS or max(len(lines) - len(imported), len(imported)) <= allowed, f"{path}: {lines}"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_line_is_longer_than_100_columns(package: str) -> None:
    """Two pages fit next to each other on a screen."""
    for path in files(package):
        assert not [line for line in path.read_text().splitlines() if len(line) > 100], path.relative_to(HOUSE)


def decisions() -> set[str]:
    """Returns the ids that docs/decisions.md defines: a line, list item, table row or heading that begins with them."""
    text = (HOUSE / "docs" / "decisions.md").read_text()
    return set(re.findall(r"^[-*#|\s`]*([A-Z][A-Z0-9]{3,})\b", text, flags=re.MULTILINE))


def ids_with_a_test() -> set[str]:
    """Returns the ids at the beginning of test names, in any test file."""
    tests = "\n".join(path.read_text() for path in (HOUSE / "tests").rglob("*.py"))
    return set(re.findall(r"^def test_([A-Z][A-Z0-9]{3,})_", tests, flags=re.MULTILINE))


def test_every_decision_has_a_line_in_the_docs_and_a_test_of_its_name() -> None:
    assert len(decisions()) > 20 and decisions() <= ids_with_a_test()


def test_no_test_replaces_a_private_name() -> None:
    """Tests check behavior and replace only public names."""
    private = re.compile(r"(?:^|\.)_(?!_)\w*$")
    for path in files("tests"):
        for node in ast.walk(tree_of(path)):
            called = getattr(node, "func", None)
            if getattr(called, "attr", getattr(called, "id", "")) in ("setattr", "patch", "object", "delattr"):
                names = [argument.value for argument in node.args if isinstance(argument, ast.Constant) and isinstance(argument.value, str)]
                assert not [name for name in names if private.search(name)], f"{path.relative_to(HOUSE)}:{node.lineno}"


def test_the_catalogue_alters_and_calls_public_functions_of_the_reference_alone() -> None:
    modules = {path.stem for path in files("reference_numpy")}
    for path in files("rosettaformer/judge/catalogue"):
        tree = tree_of(path)
        named = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        called = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        private = [name for name in (*named, *called) if name.partition(".")[0] in modules and any(map(_is_private, name.split(".")))]
        assert not [name for name in private if not name.endswith(("_replace", "_asdict", "_fields"))], path.name
