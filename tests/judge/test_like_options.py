"""`check`, `diagnose`, `new-port like` and the pytest plug-in on a port of a whole model: options, reports, deviations, user folders."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from invoke import invoke, refused, succeeded
from kinds import conformance, every
from messages import mentions
from whole_models import PLAIN, in_this_process, quick, written

import rosettaformer.judge.runner  # noqa: F401 - NumPy cannot be loaded again after the run in this process
from rosettaformer.commands import diagnose
from rosettaformer.files.checkpoints import load
from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge import diagnosing, diagnosis
from rosettaformer.pytest_plugin import parametrize_with_cases

pytest_plugins = ["pytester"]

FEW = ("-k", "transformer/short or transformer/left_padding_alone", "--dtype", "float32")
WRONG = "y = y if mask_bt.all() else np.roll(y, 1, axis=1)"
NEEDED = "load(folder) … --like FAMILY … --like DIR"
ENTRY = """
[[deviation]]
case = "transformer/left_padding_alone"
port = "{port}"
reason = "known to be off"
link = "https://example.org/1"
"""


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


def _checked(*arguments: object) -> tuple[int, dict[str, dict[str, Any]]]:
    """Returns the exit code of `check` and its rows by case and dtype."""
    found = invoke("check", *arguments, "--json", "-")
    return found.code, {f"{row['case']}-{row['dtype']}": row for row in json.loads(found.out)["results"]}


def test_the_next_command_is_said_with_the_model(tmp_path: Path) -> None:
    port = written(tmp_path, "y = y[:, ::-1]")
    found = invoke("check", port, "--like", "qwen3", "--seed", "3", *FEW[:2], "--dtype", "float32,bfloat16")
    assert found.code == 1
    assert found.out.splitlines()[-1] == f"next: rosettaformer diagnose {port} --like qwen3 --seed 3 --dtype float32,bfloat16"


# a name -> its family, its type of scaling, and what `check` prints about it
OF_FAMILIES = {
    "llama2": ("llama", "none", "base 10000, not scaled"),
    "llama3": ("llama", "none", "base 500000, not scaled"),
    "llama3.1": ("llama", "llama3", "llama3 scaling"),
    "llama-dynamic": ("llama", "dynamic", "dynamic scaling"),
    "llama-yarn": ("llama", "yarn", "yarn scaling"),
    "qwen3-yarn": ("qwen3", "yarn", "yarn scaling"),
}


@pytest.mark.parametrize("name", every(4, OF_FAMILIES))
def test_a_family_has_models_by_name(tmp_path: Path, name: str) -> None:
    """`new-checkpoint` writes them."""
    family, kind, _ = OF_FAMILIES[name]
    succeeded("new-checkpoint", name, "--out", tmp_path / "a")
    assert json.loads((tmp_path / "a" / "config.json").read_text())["model_type"] == family
    assert load(tmp_path / "a").config.rotary_scaling.kind == kind


def test_llama_is_llama_3_1(tmp_path: Path) -> None:
    for name in ("llama", "llama3.1"):
        succeeded("new-checkpoint", name, "--out", tmp_path / name)
    own, other = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("llama", "llama3.1"))
    assert own == other


@pytest.mark.parametrize("name", ["llama2", "llama3.1"])
def test_check_says_which_positions_the_model_has(tmp_path: Path, name: str) -> None:
    found = invoke("check", written(tmp_path), "--like", name, "-k", "transformer/short", "--dtype", "float32")
    assert found.code == 0 and OF_FAMILIES[name][2] in found.err


def test_a_model_that_cannot_be_loaded_is_said_once(tmp_path: Path) -> None:
    """`check` does not refer to `diagnose`, which has nothing to add; `diagnose` reports it as the only finding."""
    port = written(tmp_path, further=f"open({str(tmp_path / 'log.txt')!r}, 'a').write('x'); raise RuntimeError('no weights')")
    found = invoke("check", port, "--like", "qwen3", "-k", "not long and not far", "--dtype", "float64,float32")
    assert found.code == 1 and found.out.count("no weights") == 1 and found.out.startswith("FAILED: 4 of 4 ")
    (tmp_path / "log.txt").unlink()
    found = invoke("diagnose", port, "--like", "qwen3", "--json", tmp_path / "a.json")
    (finding,) = json.loads((tmp_path / "a.json").read_text())["findings"]
    assert (found.code, finding["component"], finding["verdict"]) == (1, "transformer", "error"), finding
    assert mentions(finding["text"], "transformer … RuntimeError: no weights")
    assert found.out.count("no weights") == 1 and found.err.count("no weights") <= 1
    assert (tmp_path / "log.txt").read_text() == "xx"  # two folders, in float32


@pytest.mark.conformance
def test_a_model_that_cannot_be_loaded_in_one_dtype_is_examined_in_the_others(tmp_path: Path) -> None:
    port = written(tmp_path, further="assert 'float64' not in folder")
    quick = ("--component", "transformer", "--dtype", "float64,float32", "--limit", 600)
    invoke("diagnose", port, "--like", "qwen3", *quick, "--json", tmp_path / "a.json")
    (finding,) = json.loads((tmp_path / "a.json").read_text())["findings"]
    assert (finding["verdict"], finding["dtype"], "float32" in finding["text"]) == ("error", "float64", True)


def test_diagnose_does_not_call_right_what_has_no_answer(tmp_path: Path) -> None:
    found = invoke("diagnose", written(tmp_path, further="del logits.hidden"), "--like", "qwen3", "--component", "states")
    assert found.code == 1 and "nothing was compared" in found.out and "hidden" in found.out


@pytest.mark.parametrize("command", ["check", "diagnose"])
def test_a_port_of_a_whole_model_needs_to_be_told_of_which(tmp_path: Path, command: str) -> None:
    assert mentions(refused(command, written(tmp_path), "--component", "transformer"), NEEDED)


@pytest.mark.parametrize(("given", "message"), [
    (("check", "--like", "qwen4"), "gpt2, .*; got 'qwen4' .nearest: qwen[23]"),
    (("diagnose", "--like", "no/such/folder"), ".*; got 'no/such/folder'"),
    (("check", "--like", "qwen3", "--checkpoint", "model.safetensors"), "--like.*--checkpoint|--checkpoint.*--like"),
    (("check", "--like", "qwen3", "--quick", "--full"), "--quick and --full"),
    (("check", "--like", "qwen3", "--results", "."), "--results"),
    (("check", "--like", "qwen3", "--ignore", "classifier"), "--ignore classifier needs --checkpoint"),
    (("check", "--like", "."), "config.json"),
    (("check", "--like", "qwen3", "--seed", "-1"), "-1"),
    (("check", "--like", "qwen3", "-k", "nothing_like_this"), "nothing_like_this"),
])  # fmt: skip
def test_what_contradicts_it_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], message: str) -> None:
    port = written(tmp_path)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert re.search(message, refused(given[0], port, *given[1:]))


def test_check_says_which_cases_fail_and_another_seed_is_another_model(tmp_path: Path) -> None:
    code, rows = _checked(PLAIN, "--like", "qwen3", *FEW)
    assert code == 0 and Counter(row["status"] for row in rows.values()) == {"pass": 2}
    code, rows = _checked(written(tmp_path, WRONG), "--like", "qwen3", *FEW)
    assert code == 1 and {case: row["status"] for case, row in rows.items()} == {
        "transformer/short-float32": "pass", "transformer/left_padding_alone-float32": "differs"
    }  # fmt: skip
    code, others = _checked(written(tmp_path, WRONG), "--like", "qwen3", "--seed", 1, *FEW)
    assert others["transformer/left_padding_alone-float32"]["error"] != rows["transformer/left_padding_alone-float32"]["error"]


def test_the_verdict_is_there_before_the_diagnosis_for_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")

    def stopped(*given: Any, limit: float, **options: Any) -> None:
        assert limit == diagnosing.LIMIT
        raise KeyboardInterrupt

    monkeypatch.setattr(diagnose, "run", stopped)
    pages = ("--junit", tmp_path / "a.xml", "--html", tmp_path / "a.html")
    said = invoke("check", written(tmp_path, WRONG), "--like", "qwen3", *FEW, *pages)
    assert "FAILED: 1 of " in said.out and f"{diagnosing.LIMIT:g} s" in said.err
    assert (tmp_path / "a.xml").exists() and not (tmp_path / "a.html").exists()


def test_a_model_that_computes_in_float32_is_said_to_do_so(tmp_path: Path) -> None:
    as_far = "y = y * (1 + 2e-7 * np.sin(np.arange(y.size)).reshape(y.shape)).astype(y.dtype)"
    port = written(tmp_path, as_far, top="dtypes = ('float64', 'float32')")
    said = diagnosis.diagnose(port, cases=quick()[:3]).findings
    assert [(finding.component, str(finding.verdict)) for finding in said] == [("transformer", "described")]
    assert "float32" in said[0].text


@pytest.mark.conformance
def test_deviations_of_its_cases_are_accepted(tmp_path: Path) -> None:
    port = written(tmp_path, WRONG)
    (tmp_path / "deviations.toml").write_text(ENTRY.format(port=port))
    code, rows = _checked(port, "--like", "qwen3", *FEW, "--deviations", tmp_path / "deviations.toml")
    assert code == 0 and Counter(row["status"] for row in rows.values()) == {"pass": 1, "deviation": 1}


@pytest.mark.parametrize(
    ("own", "shards"), [("float32", None), ("bfloat16", 40_000), conformance(("float16", 40_000)), conformance(("float64", None))]
)
def test_a_folder_of_ones_own_is_given_itself_in_its_dtype(tmp_path: Path, own: str, shards: int | None) -> None:
    """In the other dtypes the port gets a converted copy."""
    new.write("olmo2", tmp_path / "whole", seed=5, dtype=own)
    succeeded("convert", tmp_path / "whole", tmp_path / "mine", *(("--max-shard-bytes", shards) if shards else ()))
    before = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    log = tmp_path / "log.txt"
    port = written(tmp_path, further=f"open({str(log)!r}, 'a').write(f'{{__import__(\"os\").path.realpath(folder)}}\\n')")
    code, rows = _checked(port, "--like", tmp_path / "mine", "-k", "transformer/short", "--dtype", "float32,bfloat16,float16,float64")
    assert code == 0 and Counter(row["status"] for row in rows.values()) == {"pass": 4}
    folders = [Path(line) for line in log.read_text().splitlines()]
    assert folders.count(tmp_path / "mine") == 1 and len(folders) == 4
    assert {path.name for path in folders if path != tmp_path / "mine"} == {"float64", "float32", "bfloat16", "float16"} - {own}
    assert {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()} == before
    assert not any(path.exists() for path in folders if path != tmp_path / "mine")  # written copies are removed


def test_a_port_of_components_is_asked_the_same(tmp_path: Path) -> None:
    text = "from rosettaformer.judge.expectation.components import answer as transformer\n"
    (tmp_path / "by_components.py").write_text(text)
    code, rows = _checked(tmp_path / "by_components.py", "--like", "qwen3", *FEW)
    assert code == 0 and Counter(row["status"] for row in rows.values()) == {"pass": 2}


# another field of the config -> the family, the known bug it equals, and where the error begins
NAMED = {
    "rotary_layout='interleaved'": ("qwen3", "ROT1", "equal at position 0, wrong elsewhere"),
    "window=25": ("mistral", "WIN1", "23, wrong"),
    "scale_embedding=False": ("gemma", "EMB1", "wrong from position 0 on"),
}


@pytest.mark.conformance
@pytest.mark.parametrize("changes", NAMED)
def test_diagnose_names_a_mistake_and_where_it_begins(tmp_path: Path, changes: str) -> None:
    family, id_, words = NAMED[changes]
    port = written(tmp_path, changes=changes, top="dtypes = ('float32',)")
    found = invoke("diagnose", port, "--like", family, "--component", "transformer", "--json", tmp_path / "a.json")
    (finding,) = json.loads((tmp_path / "a.json").read_text())["findings"]
    assert (found.code, finding["verdict"], finding["explanations"]) == (1, "explained", [[id_]]), finding
    assert mentions(finding["text"], f"transformer: … {words} … {id_}")


LIBRARY = """
import torch
from transformers import AutoModelForCausalLM


def load(folder):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-3
    return lambda token_ids: model(torch.as_tensor(token_ids)).logits
"""


@pytest.mark.conformance
def test_diagnose_names_a_constant_of_a_model_with_norms_in_float32_within_its_limit(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "library.py").write_text(LIBRARY)
    invoke("diagnose", tmp_path / "library.py", "--like", "llama", "--json", tmp_path / "a.json")
    (finding,) = json.loads((tmp_path / "a.json").read_text())["findings"]
    assert (finding["verdict"], finding["explanations"]) == ("explained", [["rms_norm.epsilon=0.001"]]), finding


SUITE = """
import rosettaformer.judge.runner  # noqa: F401 - NumPy cannot be loaded again after the run in this process
from rosettaformer.pytest_plugin import parametrize_with_cases

@parametrize_with_cases("a_whole_port.py", like="qwen3", dtypes=["float32"], components=["transformer"], core=True)
def test_conforms(case):
    case.judge()
"""


@pytest.mark.conformance
def test_the_plug_in_makes_a_test_of_each_case(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    written(pytester.path, WRONG)
    pytester.makepyfile(test_port=SUITE)
    result = pytester.runpytest_subprocess("-p", "rosettaformer.pytest_plugin", "-p", "no:cacheprovider", "-v")
    assert result.parseoutcomes() == {"passed": 5, "failed": 1}
    result.stdout.fnmatch_lines(["*test_conforms[[]transformer/short-float32[]] PASSED*", "*transformer/left_padding-float32[]] FAILED*"])
    result.stdout.fnmatch_lines(["E*AssertionError: a_whole_port.py differs transformer/left_padding float32 eager: *"])


def test_the_plug_in_has_every_case_and_refuses_what_is_no_model() -> None:
    (mark,) = [parametrize_with_cases("port.py", like="qwen3", dtypes=["float32"], components=["decode_in_steps"]).mark]
    assert [one.id for one in mark.args[1]] == [f"decode_in_steps/{name}-float32" for name in ("steps", "medium_steps", "long_steps")]
    with pytest.raises(ValueError, match="--like"):
        parametrize_with_cases("port.py", like="qwen4")


def test_a_new_port_names_its_file_and_its_family(tmp_path: Path) -> None:
    found = succeeded("new-port", "like", "qwen3", "--no-check", folder=tmp_path)
    assert found.out.startswith("wrote qwen3_port.py\n") and "conform" not in found.out
    for command in ("check", "diagnose"):
        assert f"rosettaformer {command} qwen3_port.py --like qwen3\n" in found.out
        assert f"rosettaformer {command} qwen3_port.py --like FAMILY " in (tmp_path / "qwen3_port.py").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["qwen3_port.py"]


@pytest.mark.conformance
def test_a_new_port_conforms_and_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    found = invoke("new-port", "like", "qwen3")
    assert found.code == 0, found
    assert "rosettaformer check qwen3_port.py --like qwen3" in found.out and found.out.startswith("wrote qwen3_port.py")
    text = (tmp_path / "qwen3_port.py").read_text()
    assert "qwen3_port.py" in text and "my_port.py" not in text
    assert "qwen3_port.py" in refused("new-port", "like", "qwen3")


def test_a_new_port_of_an_unknown_family_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert re.search(r"gpt2.*nearest", refused("new-port", "like", "qwen4"))
    assert not [*tmp_path.iterdir()]
