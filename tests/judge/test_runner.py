"""The runner: whatever a port does becomes a row, and the run continues."""

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import pytest
from expectations import all_by_id
from kinds import every
from messages import each_mentions, mentions

from rosettaformer.judge import runner
from rosettaformer.judge.case import DTYPES, Case
from rosettaformer.judge.compare import heat_map
from rosettaformer.judge.ports import session
from rosettaformer.judge.summary import Summary

pytestmark = pytest.mark.product

PLAIN = all_by_id()["layer_norm/plain"]
# name of a case -> the port's action, the status, and what the message mentions
ROWS = {
    "good": ("", "pass", ""),
    "crash": ("os.kill(os.getpid(), signal.SIGSEGV)", "crash", "port's … signal 11"),
    "hang": ("time.sleep(600)", "hang", "no answer within 3 s"),
    "nan": ("y[y > 0] = np.nan", "differs", "NaN"),
    "shape": ("y = y[:, :, :-1]", "differs", "must have shape (3, 5, 13); got (3, 5, 12)"),
    "dtype": ("y = y.astype(np.float32)", "differs", "must be float64; got float32"),
    "raise": ("raise RuntimeError('no such thing')", "error", "RuntimeError: no such thing (misbehaving_port.py:"),
    "wrong": ("y = 1.001 * y", "differs", "allowed"),
    "unsupported": ("raise Unsupported('aten::made_up')", "unsupported", "aten::made_up"),
    "garbage": (r"print('\x00' * 5000 + 'garbage on standard output')", "pass", ""),
    "random": ("y = y + 1e-12 * np.random.default_rng().standard_normal(y.shape)", "error", "evaluations"),
    "three": ("y = y, y, y", "differs", "got a tuple of 3: (3, 5, 13), (3, 5, 13), (3, 5, 13)"),
    "pair": ("y = y, y", "differs", "pair … (3, 5, 13) and (3, 5, 13)"),
    "unpicklable": ("y = (value for value in y)", "differs", "NumPy"),
    "input_changed": ("case.inputs['x_btd'][0] = 0", "error", "the port changed its input x_btd in place"),
    "parameter_changed": ("case.parameters['scale'][0] = 0", "error", "the port changed its parameter scale in place"),
    "numpy_random": ("np.random.seed(0)", "error", "NumPy's"),
    "python_random": ("random.random()", "error", "Python's"),
    "buffer_first": ("buffer[...] = y; y = buffer", "pass", ""),
    "buffer_second": ("buffer[...] = y; y = buffer", "error", "layer_norm/buffer_first"),
    "last": ("", "pass", ""),
}  # fmt: skip
# a port's changes of framework state, and the message
STATE = {
    "torch_seed": ("torch.manual_seed(0)", "torch's"),
    "torch_dtype": ("torch.set_default_dtype(torch.float64)", "the port changed torch's default dtype from torch.float32 to torch.float64"),
    "keras_floatx": ("keras.config.set_floatx('float64')", "the port changed Keras's floatx from float32 to float64"),
    "keras_policy": (
        "keras.config.set_dtype_policy('mixed_bfloat16')", "the port changed Keras's dtype policy from float32 to mixed_bfloat16"
    ),
    "jax_x64": ("jax.config.update('jax_enable_x64', True)", "the port changed jax_enable_x64 from False to True"),
}  # fmt: skip
START = """
import os, random, signal, time
import numpy as np
from reference_numpy import normalization
from rosettaformer.ports import Unsupported

buffer = np.zeros((3, 5, 13))

def layer_norm(case):
    y = normalization.layer_norm(case.parameters, case.inputs["x_btd"], case.config.epsilon)
"""


@pytest.fixture(scope="module")
def misbehaving(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A port that misbehaves in every way, chosen by the case's name."""
    does = {"frameworks": "global torch, keras, jax; import torch, keras, jax", "torch_draw": "torch.rand(3)"}
    does |= {name: code for name, (code, *_) in {**ROWS, **STATE}.items()}
    text = "".join(f"    if case.name == {name!r}:\n        {code or 'pass'}\n" for name, code in does.items())
    return _port(tmp_path_factory.mktemp("ports"), f"{START}{text}    return y\n", "misbehaving_port.py")


def _cases(*names: str, **changes: object) -> list[Case]:
    """Returns the plain case under other names. The second of the two that share a buffer has different values."""
    cases = [dataclasses.replace(PLAIN, name=name, twice=name == "random", **changes) for name in names]
    other = {"x_btd": 2 * PLAIN.inputs["x_btd"] ** 2}
    return [dataclasses.replace(case, inputs=other) if case.name == "buffer_second" else case for case in cases]


@pytest.fixture(scope="module")
def rows(misbehaving: str) -> dict[str, runner.Result]:
    results = runner.run(_cases(*ROWS), [misbehaving], ["float64"], limit=3)
    assert [result.case for result in results] == [f"layer_norm/{name}" for name in ROWS]
    return {result.case.partition("/")[2]: result for result in results}


@pytest.mark.parametrize("name", ROWS)
def test_what_a_port_does_is_its_row(rows: dict[str, runner.Result], name: str) -> None:
    _, status, message = ROWS[name]
    assert rows[name].status == status
    assert mentions(rows[name].message, message)


def test_the_summary_counts_failures_apart_from_what_was_not_compared(rows: dict[str, runner.Result]) -> None:
    summary = Summary(list(rows.values()))
    assert summary.compared == 20
    assert len(summary.failed) == 16
    assert [(*reason[1:], count) for reason, count in summary.not_compared.items()] == [("unsupported", "aten::made_up", 1)]
    assert not summary.conforms


@pytest.mark.conformance
def test_shared_state_of_frameworks_is_reported_where_it_changes_and_put_back(misbehaving: str) -> None:
    for framework in ("torch", "keras", "jax"):
        pytest.importorskip(framework)
    names = ("frameworks", "torch_draw", *STATE, *STATE, "last")  # only restored state can be changed again
    results = runner.run(_cases(*names), [misbehaving], ["float64"])
    assert [result.status for result in results] == ["pass", "pass", *["error"] * 10, "pass"]
    for name, result in zip(names[2:-1], results[2:-1], strict=True):
        assert STATE[name][1] in result.message


def test_a_failure_shows_where_and_by_how_much(rows: dict[str, runner.Result]) -> None:
    wrong = rows["wrong"]
    assert (wrong.output, len(wrong.worst)) == ("output", 3)
    assert 1 < wrong.error / wrong.allowed <= wrong.excess
    assert wrong.heat is not None
    assert (len(wrong.heat), len(wrong.heat[0])) == (5, 13)
    assert max(map(max, wrong.heat)) == wrong.heat[wrong.worst[1]][wrong.worst[2]] == pytest.approx(wrong.error / wrong.allowed, rel=1e-2)
    assert max(map(max, rows["nan"].heat or [])) == 1e18
    assert rows["nan"].worst
    for name in ("good", "shape", "dtype", "raise"):
        assert (rows[name].heat is None) == (name != "dtype")
    assert rows["good"].allowed > 0
    assert rows["good"].output == ""


def test_a_heat_map_of_a_large_slice_keeps_its_largest_elements() -> None:
    error = np.zeros((2, 200, 50))
    error[1, 199, 49], error[1, 0, 20] = 7.0, 3.0
    heat = heat_map(error, (1, 199, 49))
    assert (len(heat), len(heat[0])) == (48, 48)
    assert heat[47][47] == 7.0
    assert sorted(value for row in heat for value in row if value) == [3.0, 7.0]
    assert heat_map(np.array(2.0), ()) == [[2.0]]


def test_a_run_in_which_nothing_is_compared_does_not_conform(misbehaving: str) -> None:
    results = runner.run([all_by_id()["softmax/plain"]], [misbehaving], ["float32"])
    assert [result.status for result in results] == ["not covered"]
    assert not Summary(results).conforms
    results = runner.run(_cases("good"), ["no_such_port"], ["float64"])
    assert [(result.status, result.message) for result in results] == [
        ("not started", "ModuleNotFoundError: No module named 'no_such_port'")
    ]
    assert not Summary(results).conforms
    results = runner.run(_cases("good"), [misbehaving], ["float64"], devices=["cuda"])
    assert [(result.status, result.message) for result in results] == [("skipped", "no cuda device")]
    assert not Summary(results).conforms
    assert not Summary([]).conforms


def test_a_port_that_keeps_crashing_is_given_up_and_fails(misbehaving: str) -> None:
    results = runner.run(_cases(*["crash"] * 6), [misbehaving], ["float64"])
    assert [result.status for result in results] == ["crash"] * 4 + ["skipped"] * 2
    assert not Summary(results).conforms


def _port(folder: Path, text: str, name: str = "own_port.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


NEIGHBOR = """
from reference_numpy import normalization

def layer_norm_of(case):
    return normalization.layer_norm(case.parameters, case.inputs["x_btd"], case.config.epsilon)
"""


def test_a_file_is_a_port_and_its_folder_is_importable(tmp_path: Path) -> None:
    _port(tmp_path, NEIGHBOR, "neighbor.py")
    results = runner.run(_cases("good"), [_port(tmp_path, "from neighbor import layer_norm_of as layer_norm")], ["float64"])
    assert [result.status for result in results] == ["pass"]


def test_an_entry_point_is_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _port(tmp_path, NEIGHBOR + "class Port:\n    layer_norm = staticmethod(layer_norm_of)\n", "installed_package.py")
    (tmp_path / "installed-1.dist-info").mkdir()
    (tmp_path / "installed-1.dist-info" / "METADATA").write_text("Name: installed\nVersion: 1\n")
    (tmp_path / "installed-1.dist-info" / "entry_points.txt").write_text("[rosettaformer.ports]\nmy-name = installed_package:Port\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    results = runner.run(_cases("good"), ["my-name"], ["float64"])
    assert [(result.port, result.status) for result in results] == [("my-name", "pass")]


@pytest.mark.conformance
def test_what_is_not_covered_is_said_and_different_configs_have_different_references(tmp_path: Path) -> None:
    port = _port(tmp_path, "config = {'model_width': 12, 'epsilon': 1e-5}\ndtypes = 'float64'\ndef layer_norm(case): return case\n")
    plain = [PLAIN, all_by_id()["softmax/plain"]]
    foreign = dataclasses.replace(PLAIN, name="foreign")
    results = runner.run([*plain, foreign], [port], ["float32", "float64"])
    rows = {(result.case, result.dtype): (result.status, result.message) for result in results}
    assert rows["layer_norm/plain", "float64"][0] == "differs"  # the only dtype that the port was given
    assert rows["layer_norm/plain", "float32"][0] == "not covered"
    assert rows["softmax/plain", "float64"][0] == "not covered"
    status, message = rows["layer_norm/foreign", "float64"]
    assert status == "not covered" and mentions(message, f"model_width=12 … model_width={PLAIN.config.model_width}")
    assert len(rows) == 6
    text = NEIGHBOR.replace("layer_norm_of", "layer_norm").replace("return ", "assert case.config.model_width == WIDTH\n    return ")
    ports = [_port(tmp_path, f"{text}WIDTH = {width}\nconfig = {{'model_width': {width}}}\n", f"port_{width}.py") for width in (12, 20)]
    results = runner.run(_cases("plain"), [*ports, _port(tmp_path, f"{text}WIDTH = 13\n")], ["float32"])
    assert [result.status for result in results] == ["pass"] * 3, results


@pytest.mark.parametrize(
    ("text", "message"),
    every(3, [
        ("config = {'model_widht': 12}", "port's … 'model_widht' … model_width"),
        ("config = {'model_width': -1}", "port's … model_width"),
        ("config = 12", "ValueError … 12"),
        ("dtypes = ('float31',)", "ValueError … float64, float32, bfloat16, float16; got 'float31' … float32"),
        ("framework = 'mxnet'", "ValueError … 'mxnet'"),
        ("del layer_norm", "ValueError … --like"),
        ("def f(:", "SyntaxError: "),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' (own_port.py:2)"),
    ]),
)  # fmt: skip
def test_a_port_that_is_none_is_one_row_and_nothing_is_compared(tmp_path: Path, text: str, message: str) -> None:
    port = _port(tmp_path, f"def layer_norm(case): return case.inputs['x_btd']\n{text}\n")
    results = runner.run(_cases("good", "last"), [port], ["float64"])
    assert [result.status for result in results] == ["not started"]
    assert (Summary(results).compared, Summary(results).failed, Summary(results).conforms) == (0, [], False)
    assert mentions(results[0].message, message)


def test_a_file_that_is_not_there_or_hides_a_module_is_one_row(tmp_path: Path) -> None:
    results = runner.run(_cases("good"), ["no/such_file.py", _port(tmp_path, "", "numpy.py")], ["float64"])
    assert each_mentions([result.message for result in results], ["ValueError … no/such_file.py", "ValueError … numpy.py"])


def test_a_worker_answers_again_after_a_crash_and_calls_other_methods(misbehaving: str) -> None:
    crash, good = _cases("crash", "good")
    with contextlib.closing(session.open_worker(misbehaving, 1)) as worker:
        assert worker.greeting[1]["components"] == ("layer_norm",)
        assert worker.ask(crash, 60)[0] == "crash"
        assert worker.ask(good, 60)[0] == "outputs"
        assert worker.call("trace", good, None)[0] == "not covered"
        assert worker.call("describe")[1]["dtypes"] == DTYPES
