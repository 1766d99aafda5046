"""The command, as a user calls it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from reference_numpy import preset
from rosettaformer.checkpoints import container
from rosettaformer.checkpoints.canonical import save
from rosettaformer.cli import main
from rosettaformer.commands import explain as explain_command
from rosettaformer.conformance.case import SUITE_VERSION
from rosettaformer.conformance.cases import all_cases
from rosettaformer.conformance.cases.build import parameters_of
from rosettaformer.conformance.cases.case_files import answer_path
from rosettaformer.conformance.defects import all_defects
from rosettaformer.conformance.reference import components
from rosettaformer.conformance.reference.components import COMPONENTS

HERE = Path(__file__).parent


def _run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rosettaformer", *arguments], capture_output=True, text=True, timeout=300, cwd=cwd)


def test_help_names_every_command_and_the_exit_codes() -> None:
    result = _run("--help")
    assert result.returncode == 0
    for word in ("doctor", "check", "convert", "inspect", "0 conforms, 1 differs, 2 wrong usage or bad input, 3 backend missing"):
        assert word in " ".join(result.stdout.split())


def test_check_prints_the_matrix_and_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    result = _run("check", "torch", "--component", "layer_norm,softmax", "--dtype", "float32", "--json", str(file))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "layer_norm" in result.stdout
    assert "all conform" in result.stdout
    report = json.loads(file.read_text())
    empty = [row["case"] for row in report["results"] if row["status"] == "empty"]
    assert empty == ["layer_norm/batch_0"]
    assert report["compared"] == report["passed"] == len(report["results"]) - len(empty) > 10
    assert report["failed"] == 0
    assert {row["component"] for row in report["results"]} == {"layer_norm", "softmax"}
    assert all(0 <= row["ratio"] <= 8 and row["noise"] >= 0 for row in report["results"] if row["case"] not in empty)
    assert list(tmp_path.iterdir()) == [file]


def test_check_of_a_wrong_port_exits_1_and_names_the_worst_element() -> None:
    result = _run("check", "wrong_port", "--dtype", "float64", cwd=HERE)
    assert result.returncode == 1
    assert "FAIL" in result.stdout
    assert "differs wrong_port layer_norm/large_mean float64" in result.stdout
    assert "not covered" in result.stdout


def test_the_html_report_of_a_failing_port_holds_its_diagnosis(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    result = _run("check", "wrong_port", "--dtype", "float64", "--html", str(file), cwd=Path(__file__).parent)
    assert result.returncode == 1, result.stderr
    text = file.read_text()
    assert "your output equals the truth with epsilon=outside the root" in text
    assert "nothing to explain" not in text


def test_a_run_that_compared_nothing_fails() -> None:
    result = _run("check", "wrong_port", "--component", "softmax", cwd=HERE)
    assert result.returncode == 1
    assert "nothing was compared" in result.stdout
    result = _run("check", "torch", "--component", "softmax", "--device", "cuda", "--json", "-")
    report = json.loads(result.stdout)
    if report["compared"] == 0:
        assert result.returncode == 1
        assert report["not_compared"][0]["reason"] == "no cuda device"


def test_every_report_of_a_run_is_written(tmp_path: Path) -> None:
    names = {"--json": "results.json", "--junit": "results.xml", "--html": "report.html"}
    options = [text for option, name in names.items() for text in (option, str(tmp_path / name))]
    result = _run("check", str(HERE / "wrong_port.py"), "--component", "layer_norm", "--dtype", "float64", *options)
    assert result.returncode == 1, result.stderr
    report = json.loads((tmp_path / "results.json").read_text())
    assert (report["suite"], report["min_version"], report["verdict"]) == (SUITE_VERSION, SUITE_VERSION, "differs")
    failures = [row for row in report["results"] if row["status"] == "differs"]
    assert all(row["heat"] and row["allowed"] < row["error"] and row["worst"] for row in failures)
    junit = ElementTree.parse(tmp_path / "results.xml").getroot()
    assert int(junit.attrib["failures"]) == report["failed"] == len(failures) > 0
    assert "<title>rosettaformer: differs</title>" in (tmp_path / "report.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names.values())
    assert f"differs (suite version {SUITE_VERSION}) in " in result.stdout


def test_k_chooses_cases_and_dtypes() -> None:
    result = _run("check", "wrong_port", "-k", "large_mean and float16 and not bfloat16", "--json", "-", cwd=HERE)
    assert {(row["case"], row["dtype"]) for row in json.loads(result.stdout)["results"]} == {("layer_norm/large_mean", "float16")}
    assert result.stderr.splitlines() == ["starting wrong_port: 1 comparisons at most ...", "running wrong_port: 1 cases ..."]


def test_x_stops_at_the_first_failure_that_is_not_declared(tmp_path: Path) -> None:
    def statuses(*options: str) -> list[str]:
        arguments = ("check", "wrong_port", "--component", "layer_norm", "--dtype", "float64", "-x", "--json", "-", *options)
        return [row["status"] for row in json.loads(_run(*arguments, cwd=HERE).stdout)["results"]]

    assert statuses() == ["differs", *["not run"] * 8]
    file = tmp_path / "deviations.toml"
    entry = '[[deviation]]\ncase = "layer_norm/{}"\nport = "wrong_port"\nreason = "known"\nlink = "https://example.org/1"\n'
    file.write_text(entry.format("small_variance"))
    found = statuses("--deviations", str(file))
    assert found[:2] == ["deviation", "differs"] or found[:3] == ["deviation", "pass", "differs"]
    assert found[-1] == "not run"
    text = _run("check", "wrong_port", "--component", "layer_norm", "-x", cwd=HERE).stdout
    assert "wrong_port: not run after the first failure (" in text
    assert text.splitlines()[-1] == "next: rosettaformer diagnose wrong_port"


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ((), ["layer_norm(parameters, x_btd, epsilon)", "combine_masks(mask_bhts, other_bhts)"]),
        (("-k", "softmax and not vjp"), ["softmax(logits, mask)", "    cases: 9; its gradient is softmax_vjp"]),
        (("-k", "layer_norm"), ["    parameters: scale (d), offset (d)", "    a port's module is called with: x_btd"]),
        (("cases", "-k", "layer_norm/plain-float16"), ["layer_norm/plain                                         float16"]),
        (("defects", "-k", "NRM1 and not (NRM10 or NRM11)"), ["NRM1    layer_norm                    "]),
        (("ports",), ["torch         impl_torch.port           installed"]),
    ],
)
def test_list(arguments: tuple[str, ...], lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["list", *arguments])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert [line for line in lines if line not in text] == []


def test_list_names_every_component_and_defect(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, names in (("components", COMPONENTS), ("defects", all_defects())):
        with pytest.raises(SystemExit):
            main(["list", kind])
        text = capsys.readouterr().out
        assert {re.split(r"\W", line)[0] for line in text.splitlines() if not line.startswith((" ", "axes"))} == set(names)


NEARLY = """
from reference_numpy import normalization

def layer_norm(case):
    y = normalization.layer_norm(case.parameters, case.inputs["x_btd"], case.config.epsilon)
    return y + (case.name == "plain")
"""


def test_declared_deviations_do_not_fail_and_stale_ones_do(tmp_path: Path) -> None:
    port, file = tmp_path / "nearly.py", tmp_path / "deviations.toml"
    port.write_text(NEARLY)

    def check(case: str) -> subprocess.CompletedProcess[str]:
        entry = {"case": case, "port": str(port), "dtype": "float64", "reason": "another formula", "link": "https://example.org/1"}
        file.write_text("[[deviation]]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in entry.items()))
        return _run("check", str(port), "--component", "layer_norm", "--dtype", "float64", "--deviations", str(file))

    declared = check("layer_norm/*")
    assert declared.returncode == 0, declared.stdout + declared.stderr
    assert "another formula (https://example.org/1): output: error" in declared.stdout
    assert "8 compared, 0 failed, 1 declared, 1 not compared: conforms except 1 declared" in declared.stdout
    stale = check("layer_norm/square")
    assert stale.returncode == 1
    assert "stale" in stale.stdout
    unknown = check("layer_norm/batch_9")
    assert unknown.returncode == 2
    assert "(nearest: layer_norm/batch_0)" in unknown.stderr


def test_results_of_which_some_are_missing_do_not_conform_unless_it_is_allowed(tmp_path: Path) -> None:
    case = next(case for case in all_cases() if case.id == "layer_norm/plain").at("float32")
    path = tmp_path / answer_path(case)
    path.parent.mkdir(parents=True)
    container.write(path, components.answer(case), {})
    arguments = ("check", "--results", str(tmp_path), "--component", "layer_norm")
    missing = _run(*arguments)
    assert (missing.returncode, "1 compared, 0 failed, 35 not compared: 1 of 36 given" in missing.stdout) == (1, True)
    allowed = _run(*arguments, "--allow-incomplete")
    assert (allowed.returncode, "conforms except 35 not given" in allowed.stdout) == (0, True)


def test_zeros_and_what_overflows_are_not_comparable_where_the_dtype_overflows(tmp_path: Path) -> None:
    config = preset("tiny")
    values = parameters_of(config, "transformer", np.random.default_rng(0))
    large = {name: np.float32(value) * (1000 if name.endswith(("kernel", "table")) else 1) for name, value in values.items()}
    file, port = tmp_path / "large.safetensors", tmp_path / "zeros.py"
    save(file, config, large)
    for fill in ("0", "np.nan"):
        text = f"np.full((*case.inputs['target'].shape, case.config.target_vocabulary), {fill}, case.dtype)"
        port.write_text(f"import numpy as np\n\ndef transformer(case):\n    return {text}\n")
        result = _run("check", str(port), "--checkpoint", str(file), "--dtype", "float16")
        assert result.returncode == 1
        assert "not comparable output: plain arithmetic in float16 overflows (2)" in result.stdout
        assert "0 compared, 0 failed, 2 not compared: nothing was compared" in result.stdout
        assert "Warning" not in result.stderr


def test_too_few_comparisons_fail() -> None:
    arguments = ("check", "torch", "--component", "dropout", "--dtype", "float64")
    assert _run(*arguments, "--min-cases", "1").returncode == 0
    result = _run(*arguments, "--min-cases", "1000")
    assert result.returncode == 1
    assert "at least 1000 cases must be compared; got" in result.stdout


def test_html_without_jinja2_is_one_message_before_the_run(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    script = "import sys; sys.modules['jinja2'] = None; from rosettaformer.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", script, "check", "--html", str(report)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 3
    assert result.stderr == "Error: --html needs Jinja2: pip install -e '.[report]'\n"
    assert not report.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("torch", "pytroch"),
            "port must be one of torch, tf, jax, an installed port, a Python file, an importable module; got 'pytroch' (nearest: torch)",
        ),
        (("no_such_file.py",), "there is no file no_such_file.py"),
        (("torch", "--results", "."), "--results judges outputs that exist; it takes no port, got torch"),
        (("--results", ".", "--mode", "eager"), "--results judges outputs that exist; it takes no --mode"),
        (("--min-version", "0"), "--min-version"),
        (("--min-version", str(SUITE_VERSION + 1)), "--min-version"),
        (("--deviations", "no_such_file.toml"), "no_such_file.toml"),
        (("--html", "no_such_folder/report.html"), "the folder no_such_folder does not exist"),
        (("--component", "attention"), "component must be one of embedding,"),
        (("--dtype", "float8"), "dtype must be one of float64, float32, bfloat16, float16; got 'float8'"),
        (("--device", "tpu"), "device must be one of cpu, cuda, cuda-tf32; got 'tpu'"),
        (("--mode", "fast"), "mode must be one of eager, compiled; got 'fast'"),
        (("--checkpoint", "no_such_file.safetensors"), "no_such_file.safetensors"),
        (("--limit", "-1"), "--limit"),
    ],
)
def test_wrong_usage_is_one_message_and_exit_2(arguments: tuple[str, ...], message: str) -> None:
    result = _run("check", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_doctor_says_what_is_there() -> None:
    result = _run("doctor", "--json")
    assert result.returncode == 0
    ports = json.loads(result.stdout)["ports"]
    assert list(ports) == ["torch", "tf", "jax"]
    for port in ports.values():
        assert port["state"] == "ready"
        assert "cpu" in port["about"]["devices"]
        assert port["about"]["precision"]
        assert set(port["about"]["modes"]) == {"eager", "compiled"}
    assert _run("doctor").returncode == 0


def test_a_missing_framework_is_reported_as_missing_with_the_install_line(tmp_path: Path) -> None:
    for package in ("torch", "tensorflow", "jax"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"raise ModuleNotFoundError('not installed', name={package!r})")
    environment = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from rosettaformer.cli import main; main()"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", environment, *arguments], capture_output=True, text=True, timeout=120)

    doctor = run("doctor", "--json")
    assert doctor.returncode == 0
    assert {port["state"] for port in json.loads(doctor.stdout)["ports"].values()} == {"missing"}
    assert "pip install -e '.[jax]'" in doctor.stdout
    assert "pip install -e '.[torch]'" in run("doctor").stdout
    check = run("check", "torch")
    assert check.returncode == 3
    assert "torch: missing pip install -e '.[torch]'" in check.stdout
    assert run("check").returncode == 3


def _ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException) -> tuple[int, str]:
    """The exit code and the messages where a command raises."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(explain_command.explain, "callback", fail)
    with pytest.raises(SystemExit) as ended:
        main(["explain", "ATT1"])
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("wrong"), 2, "Error: wrong\n"),
        (ValueError("a\x1b[31mb\x00c\ud800\nd"), 2, "Error: a\\x1b[31mb\\x00c\\ud800\nd\n"),
        (ValueError("x" * 50_000), 2, "Error: " + "x" * 10_000 + "... (50000 characters)\n"),
        (FileNotFoundError(2, "No such file", "a"), 2, "Error: [Errno 2] No such file: 'a'\n"),
        (MemoryError(), 2, "Error: there is not enough memory\n"),
        (MemoryError("Unable to allocate 40 GiB"), 2, "Error: Unable to allocate 40 GiB\n"),
        (KeyboardInterrupt(), 130, "\n"),
    ],
)
def test_what_a_user_or_the_system_does_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    assert _ended(monkeypatch, capsys, error) == (code, message)


@pytest.mark.parametrize("error", [TypeError("a mistake of ours"), RecursionError(), OverflowError(), KeyError("a")])
def test_a_mistake_of_ours_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    with pytest.raises(type(error)):
        _ended(monkeypatch, capsys, error)


@pytest.mark.parametrize("arguments", [("--help",), ("explain", "ATT1"), ("explain", "--help")])
def test_a_reader_that_goes_is_no_difference(arguments: tuple[str, ...]) -> None:
    line = [sys.executable, "-m", "rosettaformer", *arguments]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
