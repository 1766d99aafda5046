"""The pytest plug-in in a user's own test run."""

import os
from pathlib import Path
from typing import Any

import pytest

import rosettaformer.judge.runner  # noqa: F401 - NumPy cannot be loaded again after the run in this process
from rosettaformer.pytest_plugin import parametrize_with_cases

pytestmark = pytest.mark.product

pytest_plugins = ["pytester"]

NORM = """
import numpy as np

config = {"norm_offset": True, "norm_one_plus_scale": False}

def layer_norm(case):
    x = case.inputs["x_btd"].astype(np.float64)
    mean = x.mean(-1, keepdims=True)
    y = (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + case.config.epsilon)
    y = y * case.parameters["scale"] + case.parameters["offset"]
    {fault}
    return y.astype(case.inputs["x_btd"].dtype)
"""
SUITE = """
import rosettaformer.judge.runner  # noqa: F401 - NumPy cannot be loaded again after the run in this process
from rosettaformer.pytest_plugin import parametrize_with_cases

@parametrize_with_cases("norm.py", {options})
def test_conforms(case):
    case.judge()
"""
ENTRY = """
[[deviation]]
case = "layer_norm/plain"
port = "norm.py"
dtype = "float32"
reason = "known to be off"
link = "https://example.org/1"
"""
ONE = 'components=["layer_norm"], dtypes=["float32"]'


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Runs a test file with the given options on a port with the given fault; other plug-ins load only on request."""

    def run(options: str = ONE, fault: str = "", *arguments: str) -> pytest.RunResult:
        pytester.path.joinpath("norm.py").write_text(NORM.replace("{fault}", fault))
        pytester.makepyfile(test_port=SUITE.replace("{options}", options))
        if "-n" not in arguments:
            monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            arguments = ("-p", "rosettaformer.pytest_plugin", *arguments)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rsxX", *arguments)

    return run


@pytest.mark.conformance
def test_a_run_that_compares_nothing_fails(suite) -> None:
    assert suite('components=["softmax"], dtypes=["float32"], core=True').ret == 1


def test_every_case_is_a_test_with_a_nice_id(suite) -> None:
    result = suite(ONE, "", "-v")
    assert result.ret == 0
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] > 5
    assert (set(outcomes), outcomes["skipped"]) == ({"passed", "skipped"}, 3)  # empty outputs, and config fields that the port fixes
    result.stdout.fnmatch_lines(["*layer_norm/batch_0-float32* SKIPPED *"])  # empty outputs are vacuous
    result.stdout.fnmatch_lines(["*test_conforms[[]layer_norm/plain-float32[]] PASSED*"])


@pytest.mark.conformance
def test_options_choose_the_cases_and_what_is_not_covered_is_one_skip_for_each_component(suite) -> None:
    result = suite('components=["layer_norm", "softmax"], dtypes=["float64"], modes=["eager"], core=True', "", "-v")
    result.stdout.fnmatch_lines(["*layer_norm/large_mean-float64-eager*PASSED*", "*SKIPPED*not covered: *softmax*"])
    assert "float32" not in result.stdout.str()
    assert result.parseoutcomes()["passed"] == 3
    result = suite('components=["layer_norm", "softmax", "dropout", "transformer"], dtypes=["float64", "float32"], core=True')
    outcomes = result.parseoutcomes()
    assert outcomes["skipped"] == 3
    assert outcomes["deselected"] > 5
    result.stdout.fnmatch_lines(["SKIPPED*not covered: *transformer (* cases)"])
    listed = suite('components=["layer_norm", "softmax"], dtypes=["float64"], core=True', "", "--collect-only", "-q")
    assert len([line for line in listed.outlines if "softmax/" in line]) > 1  # collecting starts no process
    result = suite('components=["layer_norm", "self_attention", "token_encoder"], dtypes=["float64"], core=True')
    assert set(outcomes := result.parseoutcomes()) == {"passed", "deselected"}
    assert outcomes["deselected"] > 3
    result = suite('components=["self_attention", "token_encoder"], dtypes=["float64"], core=True')
    assert result.parseoutcomes()["skipped"] == 2
    assert result.ret == 1  # nothing was compared
    result.stdout.fnmatch_lines(["SKIPPED*not covered: *token_encoder (* cases)"])


@pytest.mark.conformance
def test_a_failure_is_one_clear_message_a_port_that_cannot_start_fails_and_a_missing_framework_skips(suite) -> None:
    result = suite(ONE, "y = y + (case.name == 'plain')")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["E*AssertionError: norm.py differs layer_norm/plain float32 eager: error 1 at *, allowed *"])
    text = result.stdout.str()
    assert "pytest_plugin.py" not in text
    assert len([line for line in text.splitlines() if line.startswith("E ")]) == 1
    result = suite(ONE, "y = (")
    assert result.parseoutcomes() == {"failed": 1, "deselected": 12}
    result.stdout.fnmatch_lines(["E*AssertionError: norm.py not started layer_norm/*: SyntaxError: * (13 cases)"])
    result = suite(ONE, "return y\n\nraise ModuleNotFoundError('no torch', name='torch')\n\ndef rest(y, case):")
    assert result.parseoutcomes() == {"skipped": 1, "deselected": 12}
    assert result.ret == 1  # nothing was compared
    result.stdout.fnmatch_lines(["*missing: pip install *[[]torch[]]'*"])


@pytest.mark.conformance
def test_a_declared_deviation_is_expected_to_fail(suite, pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("deviations.toml").write_text(ENTRY + ENTRY.replace("plain", "square").replace("norm.py", "another_port"))
    options = ONE + ', deviations="deviations.toml"'
    result = suite(options, "y = y + (case.name == 'plain')", "-v")
    result.stdout.fnmatch_lines(["*deviation-1-layer_norm/plain*PASSED*"])
    assert "deviation-2" not in result.stdout.str()
    assert set(outcomes := result.parseoutcomes()) == {"passed", "skipped", "xfailed"}
    assert (outcomes["xfailed"], outcomes["skipped"]) == (1, 3)
    result.stdout.fnmatch_lines(["XFAIL*known to be off (https://example.org/1)*"])


@pytest.mark.conformance
def test_a_stale_deviation_fails_where_something_was_compared(suite, pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("deviations.toml").write_text(ENTRY)
    options = ONE + ', deviations="deviations.toml"'
    result = suite(options)
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["E*layer_norm/plain*norm.py*remove the entry*"])
    result = suite(options + ', modes=["compiled"]')
    assert "failed" not in result.parseoutcomes()  # the port lacks that mode, so nothing was compared


@pytest.mark.conformance
def test_a_port_has_one_process_a_session_which_ends_with_it(suite, pytester: pytest.Pytester) -> None:
    record = "open('pids', 'a').write(f'{__import__(\"os\").getpid()}\\n')"
    suite(ONE, record, "--collect-only")
    assert pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "rosettaformer.pytest_plugin").ret == 0
    pids = pytester.path.joinpath("pids").read_text().split()
    assert len(pids) > 5
    assert len(set(pids)) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids[0]), 0)


@pytest.mark.conformance
def test_it_works_under_xdist(suite, pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("deviations.toml").write_text(ENTRY)
    result = suite(ONE + ', deviations="deviations.toml"', "y = y + (case.name == 'plain')", "-n", "2")
    outcomes = result.parseoutcomes()
    assert (outcomes["xfailed"], outcomes["skipped"]) == (1, 3)
    assert set(outcomes) == {"passed", "skipped", "xfailed"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": ["norm"]}, "components"),
        ({"dtypes": "float32"}, r"dtypes.*float64.*float32"),
        ({"command": "./port"}, "command"),
        ({"components": ["layer_norm"], "deviations": "deviations.toml"}, r"'layer_norm/plane' is unknown \(nearest: layer_norm/plain\)"),
    ],
)
def test_bad_arguments_are_one_message(options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deviations.toml").write_text(ENTRY.replace("plain", "plane"))
    with pytest.raises(ValueError, match=message):
        parametrize_with_cases("norm.py", **options)
