"""The benchmark's own proof: it times what is right and refuses to time what is wrong."""

import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks import measure, problem
from reference_numpy import TransformerConfig

HOUSE = Path(__file__).resolve().parent.parent


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "benchmarks", *arguments], cwd=HOUSE, capture_output=True, text=True, timeout=300)


def _row(difference: float, name: str, stock: bool = False) -> measure.Row:
    return measure.Row("torch", name, lambda: np.ones((2, 3)) + difference, stock=stock)


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that builds torch's rows; here torch may keep what it has compiled."""
    pytest.importorskip("torch")
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "0")
    return importlib.import_module("benchmarks.peers_torch")


@pytest.mark.slow
def test_torch_and_numpy_are_timed_and_written(peers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(framework: str, config: TransformerConfig, rounds: int, device: str) -> tuple[str, list[measure.Result]]:
        task = problem.make(config)
        rows = [row for row in peers.rows(task, device) if not row.compiles]  # compiling takes most of a minute
        return peers.describe(device), measure.measure(rows, task.answer(), rounds)

    monkeypatch.setattr(measure, "run", run)
    files = tmp_path / "numbers.json", tmp_path / "table.md"
    arguments = ["--preset", "tiny", "--rounds", "1", "--framework", "torch", "--json", str(files[0]), "--markdown", str(files[1])]
    result = CliRunner().invoke(command.bench, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(files[0].read_text())
    rows = {row["name"]: row for row in report["rows"]}
    assert list(rows) == ["reference_numpy", "impl_torch eager", "torch.nn.Transformer eager"]
    for row in rows.values():
        assert row["status"] == "timed"
        assert row["difference"] < 1e-5
        assert row["median_ms"] == row["min_ms"] > 0
        assert row["ratio"] == pytest.approx(row["median_ms"] / rows["torch.nn.Transformer eager"]["median_ms"])
    assert {"CPU", "cores", "torch", "versions"} <= report["environment"].keys()
    table = files[1].read_text()
    assert "python -m benchmarks" in table
    assert all(f"| {name} |" in table for name in rows)
    assert sorted(tmp_path.iterdir()) == sorted(files)


@pytest.mark.slow
def test_stock_layers_with_other_weights_are_refused(peers: Any) -> None:
    task = problem.make(problem.sizes("tiny"))
    other = dataclasses.replace(task, tensors={**task.tensors, "logits.bias": task.tensors["logits.bias"] + np.float32(0.01)})
    rows = [row for row in peers.rows(other, "cpu") if not row.compiles]
    assert [result.status for result in measure.measure(rows, task.answer(), rounds=1)] == ["wrong"] * 3


@pytest.mark.slow
def test_a_mistake_in_the_process_of_a_framework_is_one_line(peers: Any) -> None:
    if peers.torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    result = _run("--framework", "torch", "--device", "cuda")
    assert (result.returncode, result.stderr) == (2, "Error: device cuda needs a CUDA device; torch sees none\n")


def test_a_wrong_row_is_not_timed() -> None:
    def fail() -> np.ndarray:
        raise RuntimeError("no kernel\nand more")

    rows = [_row(0, "right"), _row(0.001, "wrong"), _row(np.nan, "nan"), dataclasses.replace(_row(0, "failing"), call=fail)]
    right, wrong, nan, failing = measure.measure(rows, np.ones((2, 3)), rounds=2)
    assert right.status == "timed"
    assert wrong.status == nan.status == "wrong"
    assert (failing.status, failing.message) == ("error", "RuntimeError: no kernel")
    assert wrong.median_ms is nan.median_ms is failing.median_ms is wrong.ratio is None
    assert measure.measure(rows[:1], np.ones((3, 2)), rounds=1)[0].message == "shape (2, 3), must be (3, 2)"


def test_ratios_are_to_the_best_stock_row() -> None:
    rows = [_row(0, "ours"), _row(0, "stock eager", stock=True), _row(0, "stock compiled", stock=True), _row(0, "numpy")]
    rows[3] = dataclasses.replace(rows[3], framework="numpy")
    ours, eager, compiled, numpy = measure.measure(rows, np.ones((2, 3)), rounds=3)
    assert None not in (ours.median_ms, eager.median_ms, compiled.median_ms, numpy.median_ms)
    assert ours.ratio == ours.median_ms / min(eager.median_ms, compiled.median_ms)  # type: ignore[operator, type-var]
    assert numpy.ratio == numpy.median_ms / eager.median_ms  # type: ignore[operator]


@pytest.mark.parametrize(("status", "code"), [("timed", 0), ("wrong", 1), ("error", 1), ("missing", 3)])
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, status: str, code: int) -> None:
    monkeypatch.setattr(measure, "run", lambda framework, *_: ("", [measure.Result(framework, status=status, message="why")]))
    result = CliRunner().invoke(command.bench, ["--framework", "torch"])
    assert result.exit_code == code
    assert "torch" in result.stdout
    assert f"{status}, why" in result.stdout


def test_a_missing_framework_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "benchmarks.peers_jax", raising=False)
    monkeypatch.setitem(sys.modules, "jax", None)
    _, [result] = measure._run("jax", problem.sizes("tiny"), 1, "cpu")
    assert (result.status, result.message) == ("missing", "pip install 'rosettaformer[jax]'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--framework", "keras"), "framework on cpu must be one of torch, tf, jax; got keras"),
        (("--framework", "tf", "--device", "cuda"), "framework on cuda must be one of torch, jax; got tf"),
        (("--device", "tpu"), "device must be one of cpu, cuda; got tpu"),
        (("--rounds", "0"), "rounds must be at least 1; got 0"),
        (("--json", "nowhere/x.json"), "nowhere/x.json must be a file in a folder that exists"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = _run(*arguments)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", f"Error: {message}\n")
