"""`new-port like FAMILY --framework`: the model in plain code conforms in every framework and needs no other library."""

import ast
import sys
from pathlib import Path

import pytest
from invoke import invoke, refused
from kinds import every
from whole_models import in_this_process, judged, models

from rosettaformer.commands.new_port import PLAIN
from rosettaformer.files.checkpoints.hugging_face import FAMILIES, new
from rosettaformer.judge.case import Case
from rosettaformer.judge.proposals.whole_models import written

IMPORTS = {"torch": {"torch", "numpy"}, "flax": {"flax", "jax", "numpy"}, "keras": {"keras", "numpy"}, "numpy": {"numpy"}}
WITH_GRADIENTS = ("torch", "flax")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


# the families whose choices plain code has
WITHOUT = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "granitemoeshared", "gpt_oss", "glm4_moe", "granite")
PLAIN_FAMILIES = [family for family in FAMILIES if family not in WITHOUT]


def _port(folder: Path, family: str, framework: str, cases: list[Case]) -> Path:
    path = folder / f"{family.replace('-', '_')}_port.py"
    path.write_text(written(Path(cases[0].folder) / "float32", framework, path.name))
    return path


def _failing(port: Path, cases: list[Case], dtype: str) -> dict[str, str]:
    chosen = [case for case in cases if dtype in case.dtypes and case.core]
    return {case: result.message for case, result in judged(port, chosen, dtype).items() if result.status != "pass"}


def test_a_plain_model_conforms(tmp_path: Path) -> None:
    """For the family with the most choices, on short texts."""
    cases = [
        case for case in models("gemma2", ("float32",)) if case.name in ("short", "left_padding", "steps") and "_vjp" not in case.component
    ]
    port = _port(tmp_path, "gemma2", "numpy", cases)
    assert {result.status for result in judged(port, cases).values()} == {"pass"}


@pytest.mark.parametrize("framework", PLAIN)
@pytest.mark.parametrize("family", every(4, PLAIN_FAMILIES))
def test_a_plain_model_has_no_line_too_many(family: str, framework: str, tmp_path: Path) -> None:
    """It imports only its framework, binds no unused name, and its lines fit a page."""
    text = _port(tmp_path, family, framework, models(family, ("float32",))).read_text()
    tree = ast.parse(text)
    imports = {(node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
               for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)}  # fmt: skip
    assert imports <= {"json", "math", "pathlib", "safetensors"} | IMPORTS[framework]
    loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = {
        alias.asname or alias.name.split(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    bound |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)} - {"load"}
    assert bound <= loaded
    assert max(map(len, text.splitlines())) <= 120
    assert "#:" not in text and "$" not in text


CONFORMING = [
    *((family, "numpy", "float32") for family in PLAIN_FAMILIES),
    *((family, "torch", "float32") for family in ("gpt2", "llama", "phi3", "olmo2", "bert")),
    *((family, "keras", "float32") for family in ("gpt2", "qwen3", "gemma2", "bert")),
    *((family, "flax", "float32") for family in ("gpt2", "phi3", "gemma2", "smollm3", "bert")),
    ("gemma3_text", "torch", "bfloat16"),
    ("llama", "flax", "bfloat16"),
]


@pytest.mark.conformance
@pytest.mark.parametrize(("family", "framework", "dtype"), CONFORMING)
def test_models_conform_in_every_framework(family: str, framework: str, dtype: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    cases = [case for case in models(family, (dtype,)) if framework in WITH_GRADIENTS or "_vjp" not in case.component]
    assert _failing(_port(tmp_path, family, framework, cases), cases, dtype) == {}


def test_the_command_writes_it_and_names_the_next_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = invoke("new-port", "like", "qwen3", "--framework", "numpy", "--no-check")
    assert found.code == 0 and "rosettaformer check qwen3_port.py --like qwen3\n" in found.out
    assert "import transformers" not in Path("qwen3_port.py").read_text()
    assert "torch, flax, keras, numpy; got 'tf'" in refused("new-port", "like", "gpt2", "--framework", "tf")
    assert "--framework needs" in refused("new-port", "numpy", "my_port", "--framework", "torch")
    assert [path.name for path in tmp_path.iterdir()] == ["qwen3_port.py"]


def test_a_missing_library_is_found_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.chdir(tmp_path)
    found = invoke("new-port", "like", "qwen3")
    assert (found.code, found.out, [*tmp_path.iterdir()]) == (3, "", [])
    assert "--framework torch" in found.err


@pytest.mark.parametrize("family", WITHOUT[:1] + WITHOUT[-1:])
def test_a_family_with_other_choices_is_refused(family: str, tmp_path: Path) -> None:
    new.write(family, tmp_path / family)
    with pytest.raises(ValueError):
        written(tmp_path / family, "torch", "port.py")
