"""The command, as a user calls it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def _run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rosettaformer", *arguments], capture_output=True, text=True, timeout=300, cwd=cwd)


def test_help_names_every_command_and_the_exit_codes() -> None:
    result = _run("--help")
    assert result.returncode == 0
    for word in ("doctor", "check", "convert", "inspect", "0 conforms, 1 differs, 2 wrong usage or bad input, 3 backend missing"):
        assert word in " ".join(result.stdout.split())


def test_check_prints_the_matrix_and_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    result = _run("check", "--port", "torch", "--component", "layer_norm,softmax", "--dtype", "float32", "--json", str(file))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "layer_norm" in result.stdout
    assert "all conform" in result.stdout
    report = json.loads(file.read_text())
    assert report["compared"] == report["passed"] == len(report["results"]) > 10
    assert report["failed"] == 0
    assert {row["component"] for row in report["results"]} == {"layer_norm", "softmax"}
    assert all(0 <= row["ratio"] <= 8 and row["noise"] >= 0 for row in report["results"])
    assert list(tmp_path.iterdir()) == [file]


def test_check_of_a_wrong_port_exits_1_and_names_the_worst_element() -> None:
    result = _run("check", "--port", "wrong_port", "--dtype", "float64", cwd=Path(__file__).parent)
    assert result.returncode == 1
    assert "FAIL" in result.stdout
    assert "differs wrong_port layer_norm/large_mean float64" in result.stdout
    assert "not covered" in result.stdout


def test_a_run_that_compared_nothing_fails() -> None:
    result = _run("check", "--port", "wrong_port", "--component", "softmax", cwd=Path(__file__).parent)
    assert result.returncode == 1
    assert "nothing was compared" in result.stdout
    result = _run("check", "--port", "torch", "--component", "softmax", "--device", "cuda", "--json", "-")
    report = json.loads(result.stdout)
    if report["compared"] == 0:
        assert result.returncode == 1
        assert report["not_compared"][0]["reason"] == "no cuda device"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", "pytroch"), "port must be one of torch, tf, jax, an importable module; got pytroch"),
        (("--component", "attention"), "component must be one of embedding,"),
        (("--dtype", "float8"), "dtype must be one of float64, float32, bfloat16, float16; got float8"),
        (("--device", "tpu"), "device must be one of cpu, cuda, cuda-tf32; got tpu"),
        (("--mode", "fast"), "mode must be one of eager, compiled; got fast"),
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
    assert "pip install 'rosettaformer[jax]'" in doctor.stdout
    assert "pip install 'rosettaformer[torch]'" in run("doctor").stdout
    check = run("check", "--port", "torch")
    assert check.returncode == 3
    assert "torch: missing pip install 'rosettaformer[torch]'" in check.stdout
    assert run("check").returncode == 3
