"""Large models: their parameters stay in the file, cases that need more memory than available are
skipped, and a model that does not fit is refused.
"""

import contextlib
import os
import subprocess
import sys
import time
import tracemalloc
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import invoke, marked

from reference_numpy import arithmetic
from reference_numpy.sharding import Mesh
from rosettaformer.files.checkpoints import view
from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.files.checkpoints.strict import numpy_dtype
from rosettaformer.judge import runner, stored
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation import orders, tolerance, trace
from rosettaformer.judge.expectation.expectation_store import digest
from rosettaformer.judge.ports import messages, session
from rosettaformer.judge.status import Status
from rosettaformer.judge.stored import Stored
from rosettaformer.judge.suite import fitting
from rosettaformer.judge.suite.asked import Suite, asked
from rosettaformer.judge.suite.like_folders import cases_of
from rosettaformer.judge.summary import Summary

CHAINS = [("float64",), ("float32",), ("float16", "float64"), ("float64", "bfloat16", "float64"), ("bfloat16", "float32", "float16")]
LARGER = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 768, "head_dim": 64}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    new.write("qwen3", tmp_path / "own", dtype="bfloat16")
    return tmp_path / "own"


@pytest.fixture
def in_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps small models in their file too, and caches no array."""
    monkeypatch.setattr(stored, "IN_MEMORY", 0)
    monkeypatch.setattr(stored, "KEPT", 0)


def _cases(folder: Path, root: Path, *dtypes: str, **options: Any) -> dict[str, Case]:
    root.mkdir()
    return {case.id: case for case in cases_of(str(folder), root, dtypes, **options)}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.usefixtures("in_file")
def test_parameters_of_a_file_are_rounded_as_those_in_memory(folder: Path, chain: tuple[str, ...]) -> None:
    found, own = Stored.of(view(folder)), view(folder).in_memory().parameters
    for dtype in chain:
        found, own = found.at(dtype), {name: array.astype(numpy_dtype(dtype)) for name, array in own.items()}
    assert [*found] == [*own] and all(np.array_equal(found[name], own[name]) and found[name].dtype == own[name].dtype for name in own)
    assert all(found[name] is not found[name] for name in own)


@pytest.mark.parametrize("component", ["transformer", "states", "transformer_vjp"])
@pytest.mark.usefixtures("in_file")
def test_what_is_expected_does_not_depend_on_where_the_parameters_are(folder: Path, tmp_path: Path, component: str) -> None:
    case = _cases(folder, tmp_path / "like", "float64", "float32")[f"{component}/short"].at("float32")
    kept = Case(**{**vars(case), "parameters": dict(case.parameters)})
    assert isinstance(case.parameters, Stored) and not isinstance(kept.parameters, Stored)
    found, own = tolerance.expect(case), tolerance.expect(kept)
    assert found.keys() == own.keys()
    for name, one in found.items():
        assert (one.noise, one.noise_rmse, one.unit) == (own[name].noise, own[name].noise_rmse, own[name].unit)
        assert np.array_equal(one.reference, own[name].reference)


@pytest.mark.usefixtures("in_file")
def test_a_run_is_recorded_alike(folder: Path, tmp_path: Path) -> None:
    case = _cases(folder, tmp_path / "like", "float64")["transformer/short"]
    found, own = trace.record(case), trace.record(Case(**{**vars(case), "parameters": dict(case.parameters)}))
    assert [*found] == [*own]
    for path, call in found.items():
        assert np.array_equal(call.output, own[path].output) and [*call.parameters] == [*own[path].parameters]
        assert all(np.array_equal(call.parameters[name], array) for name, array in own[path].parameters.items())


def test_the_digest_tells_parameters_apart(folder: Path, tmp_path: Path) -> None:
    case = _cases(folder, tmp_path / "like", "float64")["transformer/short"]
    new.write("qwen3", tmp_path / "other", dtype="bfloat16", seed=1)
    other = _cases(tmp_path / "other", tmp_path / "like2", "float64")["transformer/short"]
    twice, thrice = (stored.changed(case.parameters, change) for change in (lambda name, array: 2 * array, lambda name, array: 3 * array))
    changed = [Case(**{**vars(case), "parameters": parameters}) for parameters in (twice, thrice)]
    assert len({digest(one) for one in (case, other, case.at("float32"), *changed)}) == 5
    assert digest(case) == digest(_cases(folder, tmp_path / "like3", "float64")["transformer/short"])


@pytest.mark.parametrize("name", [*orders.ORDERS, "shuffled", "odd"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_large_operands_are_contracted_in_parts(monkeypatch: pytest.MonkeyPatch, name: str, dtype: str) -> None:
    monkeypatch.setattr(orders, "PART", 60)
    generator = np.random.default_rng(0)
    seen: list[int] = []
    plain = np.einsum

    def einsum(subscripts: str, *operands: np.ndarray, **options: Any) -> np.ndarray:
        seen.append(operands[-1].size)
        return plain(subscripts, *operands, **options)

    monkeypatch.setattr(np, "einsum", einsum)
    replaced = orders.ORDERS.get(name) or orders.shuffled(name == "odd")
    for subscripts, first, last in (("btd,dhk->bthk", (2, 3, 6), (6, 4, 5)), ("bthe,hed->btd", (2, 3, 4, 5), (4, 5, 6)),
                                    ("btd,dv->btv", (1, 3, 5), (5, 31))):  # fmt: skip
        x, kernel = (generator.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in (first, last))
        with orders.order(replaced):
            found = arithmetic.einsum(subscripts, x, kernel)
        wide = plain(subscripts, x.astype(np.float64), kernel.astype(np.float64))
        assert found.dtype == x.dtype
        assert np.abs(found.astype(np.float64) - wide).max() < (1e-12 if dtype == "float64" else 0.1)
    assert name == "plain" or max(seen) <= 60


def test_an_expectation_needs_little_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stored, "IN_MEMORY", 0)
    monkeypatch.setattr(stored, "KEPT", 1 << 20)
    new.write("qwen3", tmp_path / "own", dtype="bfloat16", settings=LARGER)
    case = _cases(tmp_path / "own", tmp_path / "like", "float32")["transformer/one_token"].at("float32")
    tracemalloc.start()
    try:
        tolerance.expect(case)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * fitting.count(case)


def test_a_port_that_loads_the_folder_is_not_sent_parameters(folder: Path, tmp_path: Path) -> None:
    case = _cases(folder, tmp_path / "like", "float32")["transformer/short"]
    (sent,), (whole,) = messages.plain([case], has_weights=True), messages.plain([case])
    assert sent["parameters"] == {} and [*whole["parameters"]] == [*case.parameters]
    assert messages.asked([sent])[0].inputs.keys() == case.inputs.keys()


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits memory so that only the smallest case fits, whatever the model's size."""
    monkeypatch.setattr(fitting, "SMALL", 0)
    monkeypatch.setattr(fitting, "PROCESSES", 0)


@pytest.mark.usefixtures("little")
def test_cases_that_do_not_fit_are_left_out_counted_and_never_passed(folder: Path, tmp_path: Path) -> None:
    cases = _cases(folder, tmp_path / "like", "float64", "float32", memory=3e6)
    large = {(case.id, dtype) for case in cases.values() for dtype in case.too_large}
    assert ("transformer/far", "float64") not in large and {("transformer/long", "float64"), ("transformer_vjp/short", "float64")} <= large
    assert ("transformer/short", "float32") not in large
    port = {"components": ["transformer", "transformer_vjp"], "dtypes": ["float64", "float32"], "config": {}, "modes": ["eager"]}
    found = asked(Suite([*cases.values()]), port)
    questions = [found.question(cases[case], dtype) for case, dtype in large if case.startswith("transformer/")]
    assert {question.status for question in questions} == {Status.TOO_LARGE}
    rows = [
        runner.Result(**question.row("p"), status=question.status, message=question.reason) for question in questions if question.status
    ]
    summary = Summary([*rows, runner.Result("transformer/short", "transformer", "p", "float32", "cpu", "eager", Status.PASS)])
    assert len(summary.left) == len(rows) and len(summary.passed) == 1 and str(len(rows)) in summary.verdict
    assert not Summary(rows).conforms
    assert all(pair[0] in fitting.left_out(cases.values()) for pair in large)


@pytest.mark.usefixtures("little")
def test_dtypes_in_which_nothing_fits_are_not_written(folder: Path, tmp_path: Path) -> None:
    count = fitting.count(next(iter(_cases(folder, tmp_path / "all", "float32").values())))
    cases = _cases(folder, tmp_path / "like", "float64", "bfloat16", memory=7 * count)
    assert not any("float64" in fitting.fits(case) for case in cases.values())
    assert sorted(path.name for path in (tmp_path / "like").iterdir()) == ["bfloat16"]


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("command", ["check", "diagnose"])
def test_a_model_that_does_not_fit_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path, command: str
) -> None:
    monkeypatch.setattr(fitting, "available_memory", lambda: 1000)
    monkeypatch.setattr(session, "open_worker", lambda *_, **__: pytest.fail("a port was started"))
    (tmp_path / "port.py").write_text("def load(folder):\n    raise SystemExit\n")
    ended = invoke(command, tmp_path / "port.py", "--like", folder)
    assert ended.code == 2 and "Traceback" not in ended.err and "GB" in ended.err


def test_a_report_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "available_memory", lambda: 10**10)
    fitting.require(600_000_000, ["bfloat16", "float32"], 1)
    with pytest.raises(ValueError, match="GB"):
        fitting.require(600_000_000, ["bfloat16", "float64"], 1)
    fitting.require(1000, ["float64"], 5)


PORT = """
import numpy as np
from rosettaformer.files.checkpoints import view
from rosettaformer.files.checkpoints.container import release

dtypes = "float32", "bfloat16"

def load(folder):
    checkpoint, weights = view(folder), []
    for array in checkpoint.parameters.values():
        weights.append(np.array(array))
        release(array)
    return lambda token_bt: np.zeros((*token_bt.shape, checkpoint.config.target_vocabulary), weights[0].dtype)
"""
LARGEST = {"hidden_size": 512, "intermediate_size": 2048, "head_dim": 64, "vocab_size": 8192}


def _peak(folder: Path, port: Path) -> int:
    """Returns the peak memory in bytes over all processes of a check, counting each page once."""
    command = [sys.executable, "-m", "rosettaformer", "check", str(port), "--like", str(folder)]
    command += ["-k", "transformer/short"]
    mark, peaks = uuid.uuid4().hex, [0]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env={**os.environ, "TEST_MEMORY": mark}, **quiet)
    while process.poll() is None:
        peaks.append(sum(map(_bytes, marked(f"TEST_MEMORY={mark}"))))
        time.sleep(0.2)
    return max(peaks)


def _bytes(pid: int) -> int:
    with contextlib.suppress(OSError):  # the process has ended
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
    return 0


@pytest.mark.conformance
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux alone says what they have")
def test_twelve_bytes_a_parameter_are_enough(tmp_path: Path) -> None:
    (tmp_path / "port.py").write_text(PORT)
    for name, settings in {"small": {}, "large": LARGEST | {"num_hidden_layers": 5}}.items():
        new.write("qwen3", tmp_path / name, dtype="bfloat16", settings=settings)
    small, large = (_peak(tmp_path / name, tmp_path / "port.py") for name in ("small", "large"))
    count = sum(array.size for array in view(tmp_path / "large").parameters.values())
    assert 15e6 < count < 60e6
    assert (large - small) / count <= 12


def test_a_model_on_a_mesh_stays_in_its_file_and_every_device_has_a_copy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _cases(folder, tmp_path / "own_like", "float32", meshes=[Mesh(data=2)])
    assert all(isinstance(case.parameters, Stored) for case in found.values()) and any(
        case.component == "training" for case in found.values()
    )
    case = next(case for case in found.values() if case.id == "training/batch")
    count = fitting.count(case)
    assert fitting.need(case, "float32", devices=8) - fitting.need(case, "float32") == 7 * 4 * count
    monkeypatch.setattr(fitting, "SMALL", 0)
    monkeypatch.setattr(fitting, "available_memory", lambda: fitting.PROCESSES + 24 * count)
    with pytest.raises(ValueError, match="million"):
        _cases(folder, tmp_path / "large", "float32", meshes=[Mesh(data=8)])
