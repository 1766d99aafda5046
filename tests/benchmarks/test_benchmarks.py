"""The benchmark tests itself: it times correct programs and refuses to time incorrect ones."""

import ctypes
import dataclasses
import importlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from invoke import invoke, refused
from kinds import conformance
from messages import mentions

from bench import __main__ as command
from bench import answers, benchmark_report, measure, peer_process, problem, timed_rows, worker
from bench.workloads import SCALING, WORKLOADS, Task, tiny
from reference_numpy import decoding, parameters
from reference_numpy.training import Trainer
from rosettaformer.common.extras import install
from rosettaformer.comparison.timing.memory import TRIM_THRESHOLD
from rosettaformer.comparison.timing.rows import BOUNDS, Call, Row

HOUSE = Path(__file__).resolve().parents[2]
TASKS = {name: tiny(tasks[name in ("W1", "W2")]) for name, tasks in WORKLOADS.items()}  # a fifth of the three shares of padding
FORWARD, TRAINING, GREEDY, BEAM, ENCODER = (TASKS[name] for name in ("W1", "W2", "W3", "W4", "W6"))
BERT, GPT2, LLAMA = TASKS["W8"], TASKS["W9"], [tiny(task) for task in WORKLOADS["W11"]]
MIXTRAL = [tiny(task) for task in WORKLOADS["W12"] if task.batch > 1]
FRAMEWORKS = {"torch": "torch", "tf": "tensorflow", "jax": "jax"}
# The tasks whose rows are run, by the prefix of their names
RUN = ["W1 20 %", "W1", *(f"W{number}" for number in (2, 3, 4, 6, 7, 8, 9, 10, 11, 12))]
Peers = Callable[[str], Any]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Peers:
    """Imports the module that builds a framework's rows; torch may reuse compiled code here."""

    def load(name: str) -> Any:
        pytest.importorskip(FRAMEWORKS.get(name, "torch"))
        monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "0")
        return importlib.import_module(f"bench.peers.{name}")

    return load


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[timed_rows.Result]]]:
    built: list[Row] = []

    class Here(peer_process.PeerProcess):
        def __init__(self, framework: str, module: str, options: peer_process.Options, environment: Any = None) -> None:
            self.framework, self.module, self.failed, self.described = framework, module, None, "here"
            given = built if module == framework else []  # the other processes of a framework have no rows
            self.server = worker.Server(SimpleNamespace(describe=str, rows=lambda problem, device: list(given)))  # type: ignore[arg-type]

        def ask(self, method: str, *arguments: Any) -> tuple[str, Any]:
            return worker.reply(lambda: getattr(self.server, method)(*arguments))

        def close(self) -> None: ...

    def run(task: Task, *given: Row, reference: answers.Reference | None = None, **options: Any) -> list[timed_rows.Result]:
        built[:] = given
        reference = reference or answers.Reference(problem.make(task))
        return measure.run(task, reference, peer_process.Options(("jax",), **options))[0]

    monkeypatch.setattr(peer_process, "PeerProcess", Here)
    monkeypatch.setattr("rosettaformer.comparison.timing.server.LONG", 0.0)
    yield run


def _row(output: Any, name: str = "a row", **about: Any) -> Row:
    return Row("jax", name, start=lambda: lambda: output, **about)


def _timed(name: str = "ours", median: float = 1.0, **about: Any) -> timed_rows.Result:
    return timed_rows.Result("torch", name, median_ms=median, min_ms=1.0, quartiles_ms=(1.0, 3.0), **about)


def _searched(task: Task) -> tuple[answers.Reference, dict[str, np.ndarray]]:
    made = problem.make(task)
    search = decoding.greedy_search if task.kind == "greedy" else decoding.beam_search
    found = search(parameters.nest(made.tensors), made.config, strategy=made.strategy, **made.question)
    if task.kind == "beam":
        found = {"token_bn": found["token_bwn"][:, 0], "score_b": found["score_bw"][:, 0]}
    return answers.Reference(made), found


def test_every_workload_is_a_task_of_its_name_with_its_share_of_padding() -> None:
    for name, tasks in WORKLOADS.items():
        for task in tasks:
            assert task.name.split()[0] == name and task.title.startswith(task.name)
            made = problem.make(dataclasses.replace(task, size="tiny"))
            for real in (made.source != 0, made.target != 0):
                assert np.mean(~real) == pytest.approx(task.padding, abs=0.02)
                assert real[:, 0].all() and not (real[:, 1:] & ~real[:, :-1]).any()
            assert f", {100 * task.padding:.0f} % padding" in task.title if task.padding else task.title.endswith(", no padding")


@pytest.mark.parametrize(("task", "attentions"), [(WORKLOADS["W5"][0], 6), (BERT, 1), (LLAMA[0], 1)], ids=["W5", "W8", "W11"])
def test_the_products_are_those_of_the_model(task: Task, attentions: int) -> None:
    """Each weight of a product counts once per token, and both products count once per attention."""
    made = problem.make(task)
    factors = ("kernel", "target_embedding.table") if made.config.tie_logits and made.config.decoder_layers else "kernel"
    tokens, kernels = task.batch * task.length, [tensor.size for name, tensor in made.tensors.items() if name.endswith(factors)]
    attention = 2 * attentions * tokens * task.length * made.config.model_width
    assert sum(np.prod(left) * right[-1] for left, right in problem.products(made)) == tokens * sum(kernels) + attention


def test_a_wrong_row_is_not_timed(measured: Any) -> None:
    def fail() -> Any:
        raise RuntimeError("no kernel\nand more")

    reference = answers.Reference(problem.make(FORWARD))
    logits = reference.expected
    near = logits + 0.5 * BOUNDS["float32"] * np.abs(logits).max()
    away = logits + 2 * BOUNDS["float32"] * np.abs(logits).max()
    failing = Row("jax", "failing", start=lambda: fail)
    given = [_row(near, "right"), _row(away, "wrong"), _row(logits * np.nan, "nan"), _row(logits[1:], "short"), failing]
    right, wrong, nan, short, failed = measured(FORWARD, *given, reference=reference, rounds=3)
    assert (right.status, len(right.samples_ms)) == ("timed", 3)
    assert right.quartiles_ms[0] <= right.median_ms <= right.quartiles_ms[1]
    assert wrong.status == nan.status == short.status == "wrong"
    assert mentions(wrong.message, "2.0e-04 … 1e-04")
    assert mentions(short.message, "(2, 12, 101) … (3, 12, 101)")
    assert (failed.status, failed.message) == ("error", "RuntimeError: no kernel")
    for result in (wrong, nan, short, failed):
        assert result.median_ms is result.ratio is None
        assert result.samples_ms == []


def test_ratios_are_to_the_best_peer_and_shares_to_the_products(measured: Any) -> None:
    def result(name: str, median: float, framework: str = "jax", **about: Any) -> timed_rows.Result:
        return timed_rows.Result(framework, name, median_ms=median, **about)

    ours, stock, better, other = result("o", 3), result("s", 2, peer=True), result("b", 1.5, peer=True), result("t", 1, "torch", peer=True)
    quick = result("q", 0.5, peer=True, comparable=False)
    half = result("h", 3, precision="bfloat16")
    products = result("p", 1, ceiling=True)
    measure.compare([ours, stock, better, other, quick, half, products])
    assert (ours.ratio, ours.ratio_to_best, ours.share) == (2, 3, pytest.approx(1 / 3))
    assert (better.ratio, other.ratio, other.share) == (1, 1, None)
    assert half.ratio is half.ratio_to_best is products.ratio is products.share is None
    measure.compare([ours, quick])
    assert ours.ratio == 6  # where there is no other peer


def test_the_references_own_answers_are_right(measured: Any) -> None:
    for task in (GREEDY, BEAM):
        reference, found = _searched(task)
        [result] = measured(task, _row(found, read=lambda output: output), reference=reference, rounds=1)
        assert result.status == "timed" and result.agreement.startswith("3 of 3"), result.message
        assert result.difference < 1e-5


def test_a_token_that_is_not_the_likeliest_is_wrong(measured: Any) -> None:
    reference, found = _searched(GREEDY)
    token_bn, log_p_bn = found["token_bn"].copy(), found["log_p_bn"].copy()
    token_bn[1, 2] = 77 if token_bn[1, 2] != 77 else 78
    log_p_bn[2, 0] += 0.1
    early = found["token_bn"].copy()
    early[0, 3] = reference.problem.strategy.end_id
    given = [
        _row({"token_bn": found["token_bn"]}, "tokens alone", read=dict),
        _row({"token_bn": token_bn}, "another token", read=dict),
        _row({**found, "log_p_bn": log_p_bn}, "another log p", read=dict),
        _row({"token_bn": token_bn[:, 1:]}, "too few", read=dict),
        _row({"token_bn": token_bn[:, 1:]}, "too few, not compared", read=dict, comparable=False),
        _row({"token_bn": token_bn}, "not compared", read=dict, comparable=False),
        _row({"token_bn": early}, "an end that may not come yet", read=dict),
    ]
    results = measured(GREEDY, *given, reference=reference, rounds=1)
    assert [result.status == "timed" for result in results] == [True, False, False, False, False, True, False]
    assert {result.status for result in results} == {"timed", "wrong"}
    assert mentions(results[3].message, "(3, 5) … (3, 6)")


@pytest.mark.parametrize("task", [GPT2, LLAMA[-1], MIXTRAL[-1]], ids=["GPT-2", "Llama", "Mixtral"])
def test_an_answer_depends_on_its_prompt_from_the_first_token_on(task: Task) -> None:
    """So an incorrect cache or mask is visible; the answer reaches its last token, although the end is allowed."""
    reference, found = _searched(task)
    made = reference.problem
    other = np.where(np.arange(made.source.shape[1]) == 0, 3 + (made.source + 40) % 90, made.source)
    changed = answers.Reference(dataclasses.replace(made, source=other))
    assert reference.difference({"token_bn": found["token_bn"]})[0] < 1e-5
    assert changed.difference({"token_bn": found["token_bn"]})[0] > 10 * BOUNDS["float32"]
    free = made.strategy.replace(min_new_tokens=0)
    again = decoding.greedy_search(parameters.nest(made.tensors), made.config, strategy=free, **made.question)
    assert np.array_equal(again["token_bn"], found["token_bn"])


@pytest.mark.parametrize(("skips", "status"), [(False, "timed"), (True, "wrong")])
def test_rows_of_padding_are_not_compared_but_zeros_with_skip_padding(measured: Any, skips: bool, status: str) -> None:
    reference = answers.Reference(problem.make(FORWARD))
    real = (reference.problem.target != 0)[..., None]
    zeros, others = (np.where(real, reference.expected, value) for value in (0, 1e-9))
    assert reference.difference({"output": np.where(real, reference.expected, np.nan)})[0] == 0
    given = [_row(zeros, "zeros", skips=skips), _row(others, "others", skips=skips), _row(np.where(real, zeros + 1e-2, 0), "wrong")]
    results = measured(FORWARD, *given, reference=reference, rounds=1)
    assert [result.status for result in results] == ["timed", status, "wrong"]
    assert ("skip_padding" in results[1].message) == skips


@pytest.mark.conformance
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_with_padding_ours_are_timed_with_skip_padding_too(peers: Peers, framework: str) -> None:
    for task in WORKLOADS["W1"]:
        given = peers(framework).rows(problem.make(tiny(task)), "cpu")
        skipping = [row.name for row in given if row.skips]
        assert skipping == [f"impl_{framework} compiled, skip_padding"] * bool(task.padding)
        assert not any(row.peer for row in given if row.skips)


def test_a_near_tie_is_right_whatever_follows() -> None:
    """Two tokens with the same bias and table row are always equally likely; the higher id is as correct as the lower."""
    made = problem.make(GREEDY)
    reference, found = answers.Reference(made), _searched(GREEDY)[1]
    chosen, twin = int(found["token_bn"][0, 0]), 99
    made.tensors["source_embedding.table"][twin] = made.tensors["source_embedding.table"][chosen]
    made.tensors["logits.bias"][twin] = made.tensors["logits.bias"][chosen]
    search = decoding.greedy_search(parameters.nest(made.tensors), made.config, made.source, made.strategy)["token_bn"]
    other = np.where(search == chosen, twin, search)
    assert (other != search).any()
    difference, agreement = reference.difference({"token_bn": other})
    assert difference < 1e-5
    assert not agreement.startswith("3 of 3")


def test_a_row_that_ends_otherwise_or_is_worse_is_wrong() -> None:
    reference, found = _searched(BEAM)
    greedy = np.random.default_rng(0).integers(3, 100, found["token_bn"].shape)
    assert reference.difference({**found, "token_bn": greedy})[0] > 10 * answers.SCORE_BOUND
    assert reference.difference({"token_bn": greedy})[0] > 10 * answers.SCORE_BOUND
    assert reference.difference({**found, "score_b": found["score_b"] * 1.01})[0] > 5 * answers.SCORE_BOUND
    token_bn = found["token_bn"].copy()
    token_bn[:, -1] = 50
    difference, agreement = reference.difference({"token_bn": token_bn})
    assert difference == 0 and mentions(agreement, "3 of 3 … beam")


def test_a_training_step_is_compared_without_dropout_and_timed_with_it(measured: Any) -> None:
    reference = answers.Reference(problem.make(TRAINING))
    losses = reference.expected

    def row(losses: np.ndarray, name: str) -> Row:
        return _row(9.5, name, check=lambda: losses)

    given = [row(losses * 1.000001, "ours"), row(losses + np.array([0, 0.001]), "no update"), row(losses[:1], "one")]
    ours, wrong, short = measured(TRAINING, *given, reference=reference, rounds=2)
    assert ours.status == "timed"
    assert wrong.message.endswith("of its largest loss; at most 1e-05")
    assert short.status == "wrong" and mentions(short.message, "(1,) … (2,)")


@pytest.mark.parametrize(("warmup", "status"), [(40, "timed"), (80, "wrong")])
def test_the_references_own_trainer_is_timed_and_another_schedule_is_refused(measured: Any, warmup: int, status: str) -> None:
    made, built = problem.make(TRAINING), []

    def start(given: problem.Problem) -> timed_rows.Step:
        built.append(given.config.dropout_rate)
        recipe = given.recipe.replace(warmup=warmup) if given is not made else given.recipe
        trainer = Trainer(given.config, recipe, given.tensors)
        return lambda: trainer.train_step(given.source, given.sequence)

    [result] = measured(TRAINING, timed_rows.training_row("jax", "reference_numpy", start, made), rounds=1)
    assert result.status == status
    assert built == [0.1, 0.0]


def test_rows_are_built_when_they_are_run_and_only_those_named(measured: Any) -> None:
    built = []

    def start() -> Call:
        built.append("other")
        return lambda: None

    reference = answers.Reference(problem.make(FORWARD))
    given = [_row(reference.expected, "impl_jax"), Row("jax", "other", start=start)]
    [result] = measured(FORWARD, *given, reference=reference, rounds=1, only=("impl",))
    assert (result.name, result.status, built) == ("impl_jax", "timed", [])


@pytest.mark.parametrize(("apart", "together"), [(False, 2), (True, 1)])
def test_frameworks_that_stand_apart_are_not_held_together(monkeypatch: pytest.MonkeyPatch, apart: bool, together: int) -> None:
    held: list[Any] = []
    counts = []

    class Process:
        failed, described, second, before = None, "here", False, False

        def __init__(self, framework: str, *_: Any) -> None:
            self.framework = framework
            held.append(self)
            counts.append(len(held))

        def ask(self, method: str, *arguments: Any) -> tuple[str, Any]:
            return "answer", [{"framework": self.framework, "name": "wrong"}]

        def close(self) -> None:
            held.remove(self)

    monkeypatch.setattr(peer_process, "PeerProcess", Process)
    task, options = dataclasses.replace(TRAINING, apart=apart), peer_process.Options(("tf", "jax"), only=("none",))
    assert measure.run(task, answers.Reference(problem.make(task)), options) == ([], {"tf": "here", "jax": "here"})
    assert max(counts) == together and not held


@pytest.fixture
def server() -> Iterator[worker.Server]:
    """A server whose process continues unchanged after its memory is measured."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system does not tell the peak")
    one = worker.Server(SimpleNamespace(rows=lambda problem, device: [_row(None)]))  # type: ignore[arg-type]
    one.rows(dataclasses.asdict(FORWARD), "cpu")
    yield one
    ctypes.CDLL(None).mallopt(TRIM_THRESHOLD, 64 << 20)


def test_memory_is_that_of_a_call_in_a_thread_too(server: worker.Server) -> None:
    """Memory above what the process already holds, at every call, whatever the previous one left."""
    held = np.ones(10 << 20)
    server.started[0] = lambda: float(np.ones(4 << 20).sum() + held[0])
    for _ in range(2):
        assert server.memory(0) == pytest.approx(32, abs=3)
    # Threads have their own heaps, which glibc does not return
    with ThreadPoolExecutor(1) as thread:
        server.started[0] = lambda: thread.submit(lambda: float(np.ones(1 << 20).sum())).result()
        for _ in range(8):
            server.started[0]()
        assert server.memory(0) == pytest.approx(8, abs=2)


@pytest.mark.conformance
def test_tensorflow_counts_the_memory_of_a_call() -> None:
    tf = pytest.importorskip("tensorflow")
    from bench.peers.tf import memory

    held = tf.ones((1 << 20,))
    call = lambda: tf.reduce_sum(tf.ones((4 << 20,)) + held[0])  # noqa: E731
    call()
    found = memory(call)
    if found is None:
        pytest.skip("TensorFlow counts memory with oneDNN alone")
    assert 16 <= found <= 2 * 16 + 1  # the ones, the sums, and small objects


@pytest.mark.parametrize(("lasting", "expected"), [(60.0, [2, 4]), (0.0, [1, 3])], ids=["a short call is warmed up", "a long one is not"])
def test_a_call_is_timed_after_another_where_that_matters(monkeypatch: pytest.MonkeyPatch, lasting: float, expected: list[int]) -> None:
    monkeypatch.setattr("rosettaformer.comparison.timing.server.LASTING", lasting)
    made: list[int] = []
    server = worker.Server(SimpleNamespace())  # type: ignore[arg-type]
    server.started[0] = lambda: made.append(0)
    seen = []
    for ask in (lambda: server.calls(0), lambda: server.time(0, 3)):
        made.clear()
        ask()
        seen.append(len(made))
    assert seen == expected


def test_our_rows_of_another_checkout_are_peers(measured: Any) -> None:
    logits = answers.Reference(problem.make(FORWARD)).expected
    found = measured(FORWARD, _row(logits, "ours"), _row(logits, "other", peer=True), rounds=1, before="there")
    assert [(result.name, result.peer) for result in found] == [("ours", False), ("other", True), ("ours, before", True)]


@pytest.mark.parametrize("name", RUN)
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.conformance
def test_our_rows_and_the_stock_layers_give_the_references_answers(peers: Peers, measured: Any, framework: str, name: str) -> None:
    tasks = [task for task in WORKLOADS[name.split()[0]] if task.name.startswith(name)]
    for task in (dataclasses.replace(tiny(task), memory="") for task in tasks):
        made = problem.make(task)
        given = [row for row in peers(framework).rows(made, "cpu") if _quick(row, task)]
        assert any(not row.peer for row in given)
        if task.kind == "training":  # comparing the outputs already compiles
            given = [dataclasses.replace(row, start=lambda: lambda: 0.0) for row in given]
        results = measured(task, *given, rounds=1)
        assert [(result.name, result.status, result.message) for result in results] == [(row.name, "timed", "") for row in given]


def _quick(row: Row, task: Task) -> bool:
    """torch takes most of a minute to compile, and other modes of the same model add nothing; optional peers have their own test."""
    if (row.framework == "torch" and row.compiles) or row.name.endswith(("nnx.jit", "impl_tf eager", "compiled, no XLA")):
        return False
    return row.name.startswith(("impl", "torch", "keras.layers", "flax", "tf")) and row.precision in task.precisions_on("cpu")[-1:]


OPTIONAL = {  # package -> the framework whose rows need it, and the prefix of their names
    "transformers": ("torch", "transformers"),
    "keras_hub": ("tf", "keras_hub"),
    "ctranslate2": ("ctranslate2", "CTr"),
}


@pytest.mark.parametrize("package", [pytest.param(one, marks=pytest.mark.conformance) if one == "keras_hub" else one for one in OPTIONAL])
@pytest.mark.parametrize(
    "task",
    [conformance(GREEDY), conformance(BEAM), BERT, GPT2, *LLAMA, *MIXTRAL],
    ids=["greedy", "beam", "BERT", "GPT-2", *(f"{task.published} {task.kind}" for task in (*LLAMA, *MIXTRAL))],
)
def test_optional_peers_give_the_references_answers_or_those_of_the_asked_length(
    peers: Peers, measured: Any, task: Task, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published models and Marian, which has our weights, are compared. No row that torch compiles runs, so its compiler stays off."""
    for needed in ("transformers", package):
        pytest.importorskip(needed)
    framework, start = OPTIONAL[package]
    if framework == "torch":
        monkeypatch.setattr("torch.compile", lambda function: function)
    rows_of = [row for row in peers(framework).rows(problem.make(task), "cpu") if row.peer and row.name.startswith(start)]
    given = [row for row in rows_of if "no XLA" not in row.name and not (framework == "torch" and row.compiles)]
    results = measured(task, *given, rounds=1)
    assert given or (package == "ctranslate2" and (task.kind == "training" or task in MIXTRAL))
    assert [(result.status, result.message) for result in results] == [("timed", "")] * len(given)
    compared = {result.name for result in results if result.difference is not None}
    assert compared == {row.name for row in given if row.comparable}
    assert compared == {row.name for row in given if task.published or "Marian" in row.name}


@pytest.mark.conformance
def test_processes_measure_and_everything_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = {name: tmp_path / f"numbers.{name}" for name in ("json", "md")}
    arguments = ["--json", str(out["json"]), "--markdown", str(out["md"]), "--data", str(tmp_path / "data")]
    line = ["--size", "tiny", "--workload", "W1,W6", "--framework", "numpy", "--rounds", "2", "--threads", "1", *arguments]
    monkeypatch.setattr(sys, "argv", ["bench", *line])
    result = invoke(*line, command=command.main)
    assert result.code == 0, result.err
    numbers = json.loads(out["json"].read_text())
    assert [task["name"] for task in numbers["tasks"]] == ["W1 0 %", "W1 20 %", "W1 50 %", "W6"]
    for task in numbers["tasks"]:
        [row] = task["rows"]
        assert (row["name"], row["status"], len(row["samples_ms"])) == ("reference_numpy", "timed", 2)
        assert 0 < row["min_ms"] <= row["median_ms"]
        assert row["difference"] < 1e-5
    assert numbers["tasks"][-1]["rows"][0]["memory_mib"] is not None
    assert {"CPU", "cores", "numpy", "versions"} <= numbers["environment"].keys()
    page = out["md"].read_text()
    assert page.count("| reference_numpy |") == 4
    assert shlex.join(["python", "-m", "bench", *line]) in page
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "data", *(path for path in out.values() if path.exists())])
    assert len([*(tmp_path / "data").iterdir()]) == 4


@pytest.mark.conformance
def test_scaling_is_measured(measured: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(task: Task, reference: answers.Reference, options: peer_process.Options) -> tuple[list[timed_rows.Result], dict[str, str]]:
        size = task.length * task.batch + task.new_tokens
        failed = timed_rows.Result("jax", "peer", status="error", message="no kernel", peer=True)
        return [_timed(median=size, memory_mib=size / 2), failed], {"jax": "here"}

    monkeypatch.setattr(measure, "run", run)
    monkeypatch.setattr(command, "make", lambda task: None)
    files = [tmp_path / name for name in ("a.json", "a.md")]
    arguments = ["--scaling", "--json", str(files[0]), "--markdown", str(files[1])]
    result = CliRunner().invoke(command.bench, arguments)
    assert result.exit_code == 1  # a peer fails
    scaling = json.loads(files[0].read_text())["scaling"]
    assert [[point["value"] for point in series["points"]] for series in scaling] == [[s.value(t) for t in s.tasks] for s in SCALING]
    page = files[1].read_text()
    assert "| row | 64 | 128 | 256 | 512 | 1024 | 2048 | 4096 |" in page
    assert page.count("## Scaling") == 6


def test_an_interrupted_run_keeps_the_tasks_that_it_finished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(task: Task, reference: answers.Reference, options: peer_process.Options) -> tuple[list[timed_rows.Result], dict[str, str]]:
        if task.kind == "beam":
            raise KeyboardInterrupt
        return [_timed()], {}

    monkeypatch.setattr(measure, "run", run)
    files = [tmp_path / name for name in ("a.json", "a.md")]
    arguments = ["--size", "tiny", "--workload", "W1,W3,W4", "--json", str(files[0]), "--markdown", str(files[1])]
    assert CliRunner().invoke(command.bench, arguments).exit_code == 1  # aborted
    assert [task["name"] for task in json.loads(files[0].read_text())["tasks"]] == ["W1 0 %", "W1 20 %", "W1 50 %", "W3"]
    assert files[1].read_text().count("| ours | 1.00 |") == 4


def test_a_page_keeps_what_is_not_measured_anew() -> None:
    def section(task: Task, median: float) -> list[str]:
        found = benchmark_report.Report("bench", 9, {"CPU": "x"}, [(task, [_timed(median=median)])])
        return benchmark_report.markdown(found)

    page = benchmark_report.merged("# Performance\n\nIntroduction.\n\n## Read me\n\ntext\n", section(GREEDY, 2.0))
    both = benchmark_report.merged(page, section(FORWARD, 3.0))
    assert both == benchmark_report.merged(both, []) == benchmark_report.merged(both, section(FORWARD, 3.0))
    again = benchmark_report.merged(both, section(dataclasses.replace(GREEDY, batch=2), 5.0))
    headings = [line.partition(":")[0] for line in again.splitlines() if line.startswith("#")]
    assert headings == ["# Performance", "## Read me", "## W3", "## W1 20 %"]
    assert again.count("| ours |") == 2
    assert "Introduction." in again
    assert "| ours | 5.00 |" in again
    assert "| ours | 2.00 |" not in again
    assert "0.833" in again  # ms a token


def test_tables_are_written_as_data_and_the_others_stay(tmp_path: Path) -> None:
    about = {"CPU": "x", "cores": "2"}
    found = benchmark_report.Report("python -m bench", 9, about, [(FORWARD, [_timed(median=2.0)])])
    (tmp_path / "w9.json").write_text("{}")
    benchmark_report.write(tmp_path, benchmark_report.markdown(found))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w1-20.json", "w9.json"]
    table = json.loads((tmp_path / "w1-20.json").read_text())
    assert table["rows"] == [["ours", "2.00", "1.00 - 3.00", "1.00"]]
    assert (table["measured"], table["environment"]) == ("Median of 9 rounds, by `python -m bench`", ["CPU: x", "cores: 2"])


@pytest.mark.parametrize(
    ("status", "peer", "code"), [("timed", False, 0), ("wrong", False, 1), ("error", True, 1), ("missing", False, 3), ("missing", True, 0)]
)
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, status: str, peer: bool, code: int) -> None:
    results = [timed_rows.Result("torch", "one", status=status, message="why", peer=peer), _timed("two")]
    monkeypatch.setattr(measure, "run", lambda *_: (results, {}))
    monkeypatch.setattr(command, "make", lambda task: None)
    result = CliRunner().invoke(command.bench, ["--framework", "torch", "--workload", "W1"])
    assert result.exit_code == code
    assert f"one: {status}, why" in result.stdout


def test_a_missing_framework_and_a_missing_peer_are_reported() -> None:
    def failed(module: str, row: timed_rows.Result) -> tuple[str, str]:
        def start() -> Any:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)

        result = peer_process.failure(row, *worker.reply(start))
        return result.status, result.message

    assert failed("jax", timed_rows.Result("jax")) == ("missing", install("jax"))
    peer = timed_rows.Result("torch", "transformers Marian")
    assert failed("transformers", peer) == ("missing", f"needs transformers: {install('bench')}")
    assert failed("impl_jax.decoding", timed_rows.Result("jax", "ours"))[0] == "error"


def test_a_process_that_dies_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peer_process.PROCESSES, "numpy", ("nothing",))
    results, _ = measure.run(FORWARD, answers.Reference(problem.make(FORWARD)), peer_process.Options(("numpy",), rounds=1))
    assert [(result.status, result.message) for result in results] == [
        ("error", "ModuleNotFoundError: No module named 'bench.peers.nothing'")
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--framework", "keras"), "'keras'"),
        (("--framework", "tf", "--device", "cuda"), "'tf'"),
        (("--device", "tpu"), "'tpu' (nearest: cpu)"),
        (("--workload", "WW1"), "(nearest: W1)"),
        (("--workload", "W1,fast"), "W1, W2, W3, W4, W5, W6, W7, W8, W9, W10, W11, W12; got 'fast'"),
        (("--json", "nowhere/x.json"), "the folder nowhere does not exist"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    said = refused(*arguments, command=command.main)
    assert said.startswith("Error: ") and said.count("\n") == 1 and mentions(said, message)


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (("--framework", "torch", "--json", "out"), "torch", "torch"),
    ],
)
def test_a_missing_package_is_found_before_any_work(
    arguments: tuple[str, ...], package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    found = invoke(*arguments, folder=tmp_path, command=command.main)
    assert (found.code, found.out, [*tmp_path.iterdir()]) == (3, "", [])
    assert package in found.err and f"[{extra}]" in found.err


def test_from_another_folder_its_files_are_written_there(tmp_path: Path) -> None:
    """The processes of the rows find the benchmarks, which are not installed."""
    line = [sys.executable, "-m", "bench", "--size", "tiny", "--workload", "W6", "--framework", "numpy", "--rounds", "1", "--json", "out"]
    done = subprocess.run(line, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(HOUSE)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [task] = json.loads((tmp_path / "out").read_text())["tasks"]
    assert [row["status"] for row in task["rows"]] == ["timed"]


@pytest.mark.conformance
def test_a_mistake_in_the_process_of_a_framework_is_one_line(peers: Peers) -> None:
    peers("torch")
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    said = refused("--framework", "torch", "--device", "cuda", "--workload", "W1", command=command.main)
    assert mentions(said, "device cuda … torch")
