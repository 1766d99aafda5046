"""The rules of the house: who imports whom, one public surface in four packages, every decision written and tested."""

import ast
import graphlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent
PORTS = ("impl_torch", "impl_tf", "impl_jax")
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "jaxlib", "flax", "optax")
# what the ports share: declarations and checks, never the reference's math
SHARED = {"TransformerConfig", "preset", "config", "checks", "parameters", "layout", "fields", "recipe", "sites", "strategy", "suggestions"}
# The reference's files that every port has a twin of.
TWINS = (
    "embedding",
    "positional_encoding",
    "mask",
    "softmax",
    "attention",
    "feed_forward",
    "normalization",
    "dropout",
    "layers",
    "stacks",
    "heads",
    "inputs",
    "transformer",
    "encoder_only",
    "states",
    "loss",
    "optimizer",
    "schedule",
    "training",
    "cache",
    "sampling",
    "decoding",
)
# What a port has beside its twins: the affine map, its dtypes, what its framework asks of it, weights and the port itself.
OWN = ("__init__", "framework", "port", "precision", "projection", "weights")
# What is there for speed lies in its folder `fast`, under the same names in every port.
FAST = ("__init__", "attention", "beams", "cache", "compiled", "fused", "int8", "packing", "projection", "request", "search")
# What one framework alone needs beside them: torch compiles a step of decoding ahead of time; a whole search is a program elsewhere.
FAST_OF = {"impl_torch": ("program",), "impl_tf": (), "impl_jax": ()}
# Components with parameters or a mode are classes in the ports; what runs a whole model is a method of their Transformer, the
# searches of their Searcher, which holds the beams in tensors.
CLASSES = {"embedding": "Embedding", "logits": "Logits", "multi_head_attention": "MultiHeadAttention", "feed_forward": "FeedForward",
           "layer_norm": "LayerNorm", "dropout": "Dropout", "encoder_layer": "EncoderLayer", "decoder_layer": "DecoderLayer",
           "encoder": "Encoder", "decoder": "Decoder", "transformer": "Transformer",
           "position_embedding": "PositionEmbedding", "segment_embedding": "SegmentEmbedding", "pooler": "Pooler",
           "classifier": "Classifier", "masked_language_head": "MaskedLanguageHead"}  # fmt: skip
METHODS = ("encode", "decode", "training_loss")
OF_AN_ENCODER = ("pool", "classify", "classification_loss", "masked_language_logits")
SEARCHES = ("greedy_search", "sample", "beam_search")
INSIDE = ("arithmetic", "beams", "int8")  # the reference's own
OF_METHODS = {"decoding": ["Searcher"], "encoder_only": ["EncoderOnly"]}  # twins whose functions are methods of a class
DECISIONS = ("MASK", "EMPTY", "CAUSAL", "SCALE", "SOFTMAX", "NORM", "POSITION", "EMBED", "RESIDUAL", "DROPOUT",
             "INIT", "SMOOTH", "ADAM", "NOAM", "BEAM", "SAMPLE", "GELU", "ALONE", "HEADS", "PADDING", "INT8")  # fmt: skip


def files(package: str) -> list[Path]:
    return sorted((HOUSE / package).rglob("*.py"))


def imports(path: Path) -> set[tuple[str, str]]:
    """(module, name) of every import in a file, also within functions; (module, "") of a plain one; relative ones are not listed."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {(str(node.module), alias.name) for alias in node.names}
    return found


def imported_packages(package: str) -> set[str]:
    return {module.partition(".")[0] for path in files(package) for module, _ in imports(path)}


def public(path: Path) -> list[str] | None:
    """The names in a file's `__all__`, in their order; None where it has none."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(getattr(node, "target", None) or node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def defined(path: Path) -> list[str]:
    """The names in a file's `__all__`, in the order in which it defines them."""
    names = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [name for name in names if name in (public(path) or [])]


def methods(package: str, file: str, name: str) -> list[str]:
    """The methods of a class, in the order in which it defines them."""
    classes = [node for node in ast.parse((HOUSE / package / f"{file}.py").read_text()).body if isinstance(node, ast.ClassDef)]
    return [node.name for part in classes if part.name == name for node in part.body if isinstance(node, ast.FunctionDef)]


def of_a_port(names: list[str]) -> list[str]:
    """What a port calls these names of the reference. Frameworks derive what it derives by hand."""
    return [CLASSES.get(name, name) for name in names if name not in METHODS and not name.endswith("_vjp")]


def test_the_reference_imports_numpy_and_the_standard_library_only() -> None:
    assert files("reference_numpy")
    assert imported_packages("reference_numpy") <= sys.stdlib_module_names | {"numpy"}


@pytest.mark.parametrize("package", PORTS)
def test_no_port_imports_another_nor_the_judge(package: str) -> None:
    others = {"rosettaformer", *PORTS} - {package}
    assert not imported_packages(package) & others


@pytest.mark.parametrize("package", PORTS)
def test_ports_take_declarations_and_checks_from_the_reference_and_no_math(package: str) -> None:
    for path in files(package):
        for module, name in imports(path):
            if module.partition(".")[0] == "reference_numpy":
                first = module.split(".")[1] if "." in module else name
                assert first in SHARED, f"{path.relative_to(HOUSE)} imports {module} {name}"


@pytest.mark.parametrize("package", ["reference_numpy", "rosettaformer", *PORTS])
def test_importing_a_package_loads_no_framework(package: str) -> None:
    script = f"import sys, {package}; print([name for name in {FRAMEWORKS!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], cwd=HOUSE, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_importing_the_whole_reference_loads_no_framework_and_not_the_judge() -> None:
    modules = ", ".join(f"reference_numpy.{path.stem}" for path in files("reference_numpy") if path.stem != "__init__")
    script = f"import sys, {modules}; print([name for name in {(*FRAMEWORKS, 'rosettaformer', *PORTS)!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], cwd=HOUSE, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_command_loads_no_framework() -> None:
    if importlib.util.find_spec("rosettaformer.cli") is None:
        pytest.skip("no command yet")
    script = f"import sys, rosettaformer.cli; print([name for name in {FRAMEWORKS!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], cwd=HOUSE, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("application", ["reference_numpy", "rosettaformer", *PORTS])
def test_no_module_is_in_a_circle_of_imports(application: str) -> None:
    """Each can be imported first: a module depends on what it imports at its top, and on the packages around that."""
    modules = {".".join(path.relative_to(HOUSE).with_suffix("").parts).removesuffix(".__init__"): path for path in files(application)}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            target = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            for full in (".".join(filter(None, [*target, alias.name])).split(".") for alias in node.names):
                chain = [".".join(full[:length]) for length in range(1, len(full) + 1)]
                graph[name] |= {one for one in chain if one in modules and not f"{name}.".startswith(f"{one}.")}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(modules)


def test_modules_know_nothing_of_the_reference_nor_of_the_judge() -> None:
    for path in files("rosettaformer/modules"):
        froms = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        assert not [node.module for node in froms if node.level > 1], path.name  # no other room of the application
        assert {module.partition(".")[0] for module, _ in imports(path)} & {"reference_numpy", "rosettaformer"} == set(), path.name


@pytest.mark.parametrize("package", PORTS)
def test_a_port_has_the_twins_the_agreed_files_and_no_others(package: str) -> None:
    found = {path.relative_to(HOUSE / package).with_suffix("").as_posix() for path in files(package)}
    assert found == {*TWINS, *OWN, *(f"fast/{name}" for name in (*FAST, *FAST_OF[package]))}


@pytest.mark.parametrize("package", PORTS)
def test_files_that_hold_the_model_use_no_private_name_of_another_object(package: str) -> None:
    """Neither of their framework: what needs one lies in `fast` or `framework`, with the reason."""
    for path in {HOUSE / package / f"{file}.py" for file in (*TWINS, *OWN)} - {HOUSE / package / "framework.py"}:
        tree = ast.parse(path.read_text())
        names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_private(node.attr)}
        private = {name for name in names if not re.fullmatch(r"(self|cls)\._\w+", name)}
        private |= {name for pair in imports(path) for name in ".".join(pair).split(".") if _is_private(name)}
        assert not private, path.relative_to(HOUSE)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("file", TWINS)
@pytest.mark.parametrize("package", PORTS)
def test_a_port_defines_the_public_names_of_the_reference_in_its_order(package: str, file: str) -> None:
    reference, port = HOUSE / "reference_numpy" / f"{file}.py", HOUSE / package / f"{file}.py"
    assert port.exists(), f"{package} has no {file}.py"
    for names in (public, defined):
        assert names(port) == OF_METHODS.get(file, of_a_port(names(reference) or []))
    assert set(defined(port)) == set(public(port) or [])


def test_every_file_of_the_reference_is_a_twin_or_shared() -> None:
    assert {path.stem for path in files("reference_numpy")} - {"__init__", *INSIDE} - SHARED <= set(TWINS)


@pytest.mark.parametrize("package", ["reference_numpy", *PORTS])
def test_every_public_name_is_defined_and_every_file_has_a_surface(package: str) -> None:
    for path in files(package):
        names = public(path)
        assert names is not None or path.stem in ("port", "__main__"), f"{path.relative_to(HOUSE)} has no __all__"
        defined = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                defined |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                defined |= {target.id for target in targets if isinstance(target, ast.Name)}
        assert set(names or []) <= defined, path.relative_to(HOUSE)


@pytest.mark.parametrize(
    ("file", "name", "wanted"),
    [("transformer", "Transformer", METHODS), ("encoder_only", "EncoderOnly", OF_AN_ENCODER), ("decoding", "Searcher", SEARCHES)],
)
@pytest.mark.parametrize("package", PORTS)
def test_a_port_has_the_methods_of_the_reference_s_names_in_its_order(package: str, file: str, name: str, wanted: tuple[str, ...]) -> None:
    of_the_reference = [name for name in defined(HOUSE / "reference_numpy" / f"{file}.py") if name in wanted]
    assert of_the_reference == list(wanted)
    assert [method for method in methods(package, file, name) if method in wanted] == of_the_reference


def decisions() -> set[str]:
    """The ids that docs/decisions.md gives a line: a line, list item, table row or heading that begins with them."""
    text = (HOUSE / "docs" / "decisions.md").read_text()
    return set(re.findall(r"^[-*#|\s`]*([A-Z][A-Z0-9]{3,})\b", text, flags=re.MULTILINE))


def ids_with_a_test() -> set[str]:
    """The ids that begin a test's name, in any file of the tests."""
    tests = "\n".join(path.read_text() for path in (HOUSE / "tests").glob("*.py"))
    return set(re.findall(r"^def test_([A-Z][A-Z0-9]{3,})_", tests, flags=re.MULTILINE))


def test_every_decision_has_a_line_in_the_docs() -> None:
    assert set(DECISIONS) <= decisions()


def test_every_decision_in_the_docs_has_a_test_of_its_name() -> None:
    assert decisions() <= ids_with_a_test()


def test_no_test_replaces_a_private_name() -> None:
    """Tests check behaviour: what they need to replace is public."""
    private = re.compile(r"(?:^|\.)_(?!_)\w*$")
    for path in files("tests"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("setattr", "patch", "object", "delattr"):
                names = [argument.value for argument in node.args if isinstance(argument, ast.Constant) and isinstance(argument.value, str)]
                assert not [name for name in names if private.search(name)], f"{path.relative_to(HOUSE)}:{node.lineno}"
