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
from benchmarks import measure, problem, report
from reference_numpy import TransformerConfig, parameters
from reference_numpy.training import Trainer
from reference_numpy.transformer import training_loss

HOUSE = Path(__file__).resolve().parent.parent
PAGE = (HOUSE / "docs" / "performance.md").read_text()


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
    def run(framework: str, config: TransformerConfig, answer: Any, rounds: int, device: str, training: bool) -> tuple[str, Any]:
        assert not training
        rows = [row for row in peers.rows(problem.make(config), device) if not row.compiles]  # compiling takes most of a minute
        return peers.describe(device), measure.measure(rows, answer(), rounds)

    monkeypatch.setattr(measure, "run", run)
    files = tmp_path / "numbers.json", tmp_path / "table.md"
    arguments = ["--preset", "tiny", "--rounds", "1", "--framework", "torch", "--json", str(files[0]), "--markdown", str(files[1])]
    result = CliRunner().invoke(command.bench, arguments)
    assert result.exit_code == 0, result.output
    numbers = json.loads(files[0].read_text())
    rows = {row["name"]: row for row in numbers["rows"]}
    assert list(rows) == ["reference_numpy", "impl_torch eager", "torch.nn.Transformer eager"]
    for row in rows.values():
        assert row["status"] == "timed"
        assert row["difference"] < 1e-5
        assert row["median_ms"] == row["min_ms"] > 0
        assert row["ratio"] == pytest.approx(row["median_ms"] / rows["torch.nn.Transformer eager"]["median_ms"])
    assert {"CPU", "cores", "torch", "versions"} <= numbers["environment"].keys()
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
@pytest.mark.parametrize(
    ("framework", "names"),
    [
        ("torch", ["impl_torch eager", "torch.nn.Transformer eager"]),
        ("tf", ["impl_tf compiled", "keras.layers compiled", "keras.layers compiled, no XLA"]),
        ("jax", ["impl_jax compiled", "flax.nnx compiled, nnx.jit", "flax.nnx compiled, split by hand"]),
    ],
)
@pytest.mark.usefixtures("peers")
def test_training_rows_give_the_truths_losses(framework: str, names: list[str]) -> None:
    module = {"torch": "torch", "tf": "tensorflow", "jax": "jax"}[framework]
    pytest.importorskip(module)
    config = problem.sizes("tiny").replace(encoder_layers=1, decoder_layers=1)
    task = problem.make(config)
    built = importlib.import_module(f"benchmarks.peers_{framework}").training_rows(task, "cpu")
    rows = [row for row in built if not (framework == "torch" and row.compiles)]  # compiling takes most of a minute
    results = measure.measure(rows, task.checked.losses(), rounds=1)
    assert [(result.name, result.status, result.message) for result in results] == [(name, "timed", "") for name in names]
    assert [result.stock for result in results] == [not name.startswith("impl_") for name in names]


@pytest.mark.parametrize(("arguments", "training"), [((), False), (("--training",), True)])
def test_the_truth_answers_once_for_all_frameworks(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], training: bool) -> None:
    asked, answers = [], []

    def run(framework: str, config: TransformerConfig, answer: Any, rounds: int, device: str, trained: bool) -> tuple[str, Any]:
        assert trained is training
        answers.append(answer())
        return "", [measure.Result(framework)]

    monkeypatch.setattr(measure, "run", run)
    monkeypatch.setattr(problem.Problem, "answer", lambda self: asked.append(self.config.dropout_rate) or "logits")
    monkeypatch.setattr(problem.Problem, "losses", lambda self: asked.append(self.config.dropout_rate) or "losses")
    result = CliRunner().invoke(command.bench, ["--preset", "tiny", *arguments])
    assert result.exit_code == 0, result.output
    assert answers == ["losses" if training else "logits"] * 3
    assert asked == [0.0 if training else 0.1]


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


def test_a_training_step_is_compared_without_dropout_and_timed_with_it() -> None:
    answer = np.array([9.0, 8.0, 7.0])

    def row(losses: np.ndarray, name: str, stock: bool = False) -> measure.Row:
        return measure.Row("torch", name, lambda: 9.5, stock=stock, check=lambda: losses)

    rows = [
        row(answer * 1.000001, "ours"),
        row(answer, "stock", stock=True),
        row(answer + np.array([0, 0.001, 0]), "no update"),
        row(answer[:1], "one"),
    ]
    ours, stock, wrong, short = measure.measure(rows, answer, rounds=2)
    assert (ours.status, stock.status) == ("timed", "timed")
    assert ours.ratio == ours.median_ms / stock.median_ms  # type: ignore[operator]
    assert (wrong.status, wrong.message) == ("wrong", "differs from the truth by 1.1e-04 of its largest loss; at most 1e-05")
    assert (short.status, short.message) == ("wrong", "shape (1,), must be (3,)")


def test_the_training_problem_is_the_forward_one_with_labels() -> None:
    task = problem.make(problem.sizes("tiny"))
    assert np.array_equal(task.sequence[:, 1:], task.target)
    assert task.config.dropout_rate == 0.1
    assert task.checked.config.dropout_rate == 0
    first, second = task.checked.losses()
    alone = training_loss(parameters.nest(task.tensors), task.checked.config, task.source, task.sequence, task.recipe.smoothing)
    assert first == pytest.approx(float(alone), rel=1e-6)
    # the update shows in the next loss far more clearly than the comparison needs
    assert first - second > 100 * measure.LOSS_BOUNDS["float32"] * first


@pytest.mark.parametrize(("warmup", "status"), [(40, "timed"), (80, "wrong")])
def test_the_truths_own_trainer_is_timed_and_another_schedule_is_refused(warmup: int, status: str) -> None:
    task = problem.make(problem.sizes("tiny"))
    built = []

    def start(given: problem.Problem) -> measure.Step:
        built.append(given.config.dropout_rate)
        recipe = given.recipe.replace(warmup=warmup) if given is not task else given.recipe
        trainer = Trainer(given.config, recipe, given.tensors)
        return lambda: trainer.train_step(given.source, given.sequence)

    row = measure.training_row("numpy", "reference_numpy", start, task)
    [result] = measure.measure([row], task.checked.losses(), rounds=1)
    assert result.status == status
    assert built == [0.1, 0.0]


def test_a_page_keeps_its_other_section() -> None:
    results = [measure.Result("torch", "ours", median_ms=2.0, min_ms=1.0)]
    forward = report.markdown("t", "python -m benchmarks", {}, results)
    training = report.markdown("t", "python -m benchmarks --training", {}, results, training=True)
    both = report.merged(report.merged("", training), forward)
    assert both == report.merged(report.merged("", forward), training) == report.merged(both, forward)
    assert [line for line in both.splitlines() if line.startswith("#")] == ["# Performance", "## Forward pass", "## Training step"]
    assert both.count("| ours | 2.0 | 1.0 |") == 2
    assert "logits within 1e-04" in both
    assert "losses of 2 steps without dropout within 1e-05" in both


def test_the_page_in_the_docs_can_be_written_again() -> None:
    assert report.merged(PAGE, PAGE[PAGE.index("## Forward pass") :].partition("## Training step")[0]) == PAGE


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
    _, [result] = measure._describe("jax", "cpu")
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
