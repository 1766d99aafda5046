"""`new-port like FAMILY --framework`: the model in plain code conforms in every framework and needs no other library."""

import ast
import sys
from pathlib import Path

import pytest
from invoke import invoke, refused
from kinds import every
from whole_models import in_this_process, judged, models

from rosettaformer.commands.new_port import PLAIN
from rosettaformer.files.checkpoints.hugging_face import FAMILIES
from rosettaformer.judge.case import Case
from rosettaformer.judge.proposals.whole_models import written

IMPORTS = {"torch": {"torch", "numpy"}, "flax": {"flax", "jax", "numpy"}, "keras": {"keras", "numpy"}, "numpy": {"numpy"}}
WITH_GRADIENTS = ("torch", "flax")
ALONE = [family for family, found in FAMILIES.items() if not found.encoder_decoder]
SHORT = ("short", "left_padding", "steps")  # prompts


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


def _port(folder: Path, family: str, framework: str, cases: list[Case]) -> Path:
    path = folder / f"{family.replace('-', '_')}_port.py"
    path.write_text(written(next(Path(cases[0].folder).iterdir()), framework, path.name))
    return path


def _failing(port: Path, cases: list[Case], dtype: str) -> dict[str, str]:
    chosen = [case for case in cases if dtype in case.dtypes and case.core]
    return {case: result.message for case, result in judged(port, chosen, dtype).items() if result.status != "pass"}


@pytest.mark.parametrize("family", ["gemma2", "glm4_moe", "gpt_oss", "granitemoeshared"])
def test_a_plain_model_conforms(family: str, tmp_path: Path) -> None:
    """For the families with the most choices, on short texts."""
    cases = [case for case in models(family, ("float32",)) if case.name in SHORT and "_vjp" not in case.component]
    port = _port(tmp_path, family, "numpy", cases)
    assert {result.status for result in judged(port, cases).values()} == {"pass"}


@pytest.mark.parametrize(
    ("family", "line", "broken"),
    [
        ("glm4_moe", "score_btx + self.bias", "score_btx"),
        ("glm4_moe", "np.where(inside_btx, biased_btx", "np.where(inside_btx, score_btx"),
        ("glm4_moe", 'np.where(inside_btx, biased_btx, float("-inf"))', "biased_btx"),
        ("glm4_moe", "[..., -2:]", "[..., -1:]"),
        ("glm4_moe", "weight_btx = self.scale * weight_btx", "pass"),
        ("glm4_moe", "score_btx, 0.0)", "biased_btx, 0.0)"),
        ("glm4_moe", "return y_btd + self.shared(x_btd)", "return y_btd"),
        ("gpt_oss", "np.clip(hidden, -self.limit, self.limit)", "hidden"),
        ("gpt_oss", "y_btm[..., 0::2], y_btm[..., 1::2]", "np.split(y_btm, 2, -1)"),
        ("gpt_oss", "self.sink[:, None, None]", "0 * self.sink[:, None, None]"),
        ("granitemoeshared", 'np.where(chosen_btx, logits_btx, float("-inf"))', "logits_btx"),
        ("granitemoeshared", "return x_btd + y_btd * self.multiplier, past", "return x_btd + y_btd, past"),
    ],
)
def test_a_broken_line_of_a_mixture_is_seen(family: str, line: str, broken: str, tmp_path: Path) -> None:
    cases = [case for case in models(family, ("float32",)) if case.id == "transformer/medium"]
    port = _port(tmp_path, family, "numpy", cases)
    text = port.read_text()
    assert line in text
    port.write_text(text.replace(line, broken))
    assert {result.status for result in judged(port, cases).values()} == {"differs"}


@pytest.mark.parametrize("framework", PLAIN)
@pytest.mark.parametrize("family", every(4, ALONE))
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
    *((family, "numpy", "float32") for family in ALONE),
    *((family, "torch", "float32") for family in ("gpt2", "llama", "phi3", "olmo2", "bert", "glm4_moe", "gpt_oss", "granitemoe")),
    *((family, "keras", "float32") for family in ("gpt2", "qwen3", "gemma2", "bert", "glm4_moe", "gpt_oss", "granitemoeshared")),
    *((family, "flax", "float32") for family in ("gpt2", "phi3", "gemma2", "smollm3", "bert", "qwen2_moe", "gpt_oss", "granite")),
    *((family, "torch", "bfloat16") for family in ("gemma3_text", "mixtral", "glm4_moe", "gpt_oss", "granitemoeshared")),
    *((family, "flax", "bfloat16") for family in ("llama", "qwen2_moe", "glm4_moe", "gpt_oss", "granite")),
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
