"""A command as a port of a whole model: it gets a folder, prompts and the output path for logits; every outcome is a row."""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from kinds import conformance, every
from messages import mentions
from whole_models import PLAIN, models

from rosettaformer.judge import runner
from rosettaformer.judge.case import Case
from rosettaformer.judge.result import Result
from rosettaformer.judge.status import UNSTARTED
from rosettaformer.judge.suite import prompts

pytestmark = pytest.mark.product

NAMES = ("short", "one_token", "batch", "medium", "right_padding", "left_padding")
COMMAND = """
import json, os, signal, sys, time
from pathlib import Path

import numpy as np

if sys.argv[1] == "--describe":
    DESCRIBE
    sys.exit()
folder, questions, answers = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
with open(LOG, "a") as log:
    log.write(f"{Path(folder).name} {len(list(questions.iterdir()))}\\n")
sys.path.insert(0, PORTS)
from whole_numpy import load

run = load(folder)
for question in sorted(questions.glob("*.npz")):
    name, file = question.stem.partition("-")[2], answers / f"{question.stem}.npy"
    given = np.load(question)
    arguments = [given[key] for key in ("token_bt", "mask_bt", "segment_bt") if key in given]
    logits_btv = run(*arguments).astype(np.float32)
DOES
    np.save(file, logits_btv)
"""


def _cases(family: str = "qwen3", names: tuple[str, ...] = NAMES) -> list[Case]:
    return [case for case in models(family) if case.component in prompts.COMPONENTS and case.name in names]


def _command(folder: Path, does: Mapping[str, str], describe: str = "pass") -> str:
    """Returns a command that runs the code under the name of a prompt, or under "all", before it writes its logits."""
    lines = "".join(f"    if name == {name!r} or {name!r} == 'all':\n        {code}\n" for name, code in does.items())
    text = COMMAND.replace("DESCRIBE", describe).replace("LOG", repr(str(folder / "log.txt"))).replace("PORTS", repr(str(PLAIN.parent)))
    (folder / "command.py").write_text(text.replace("DOES", lines))
    return f"command:{sys.executable} {folder / 'command.py'}"


def _judged(folder: Path, does: Mapping[str, str], describe: str = "pass", cases: list[Case] | None = None) -> dict[str, Result]:
    results = runner.run(_cases() if cases is None else cases, [_command(folder, does, describe)], ["float32"], limit=20)
    return {result.case.partition("/")[2]: result for result in results}


@pytest.mark.parametrize("family", ["qwen3", conformance("bert")])
def test_a_command_that_gives_logits_conforms_and_is_called_once_for_a_dtype(tmp_path: Path, family: str) -> None:
    """In bfloat16 it writes float32; it cannot return gradients, states or steps."""
    cases = [case for case in models(family) if case.name in ("short", "left_padding", "steps", "two_segments")]
    asked = [case for case in cases if case.component in prompts.COMPONENTS]
    results = runner.run(cases, [_command(tmp_path, {})], ["float32", "bfloat16"])
    for result in results:
        if result.component in prompts.COMPONENTS:
            assert result.status == "pass", result
        else:
            assert (result.status, "logits" in result.message) == ("not covered", True)
    assert (tmp_path / "log.txt").read_text().split("\n")[:-1] == [f"{dtype} {len(asked)}" for dtype in ("float32", "bfloat16")]


# the name of a prompt -> the command's action, the status and the message
ROWS = {
    "short": ("pass", "pass", ""),
    "one_token": ("logits_btv = logits_btv[..., :-1]", "differs", "must have shape (1, 1, 101); got (1, 1, 100)"),
    "batch": ("logits_btv *= 1.01", "differs", "allowed"),
    "medium": ("file.write_bytes(b'\\x93NUMPY torn'); continue", "error", "medium.npy"),
    "right_padding": ("continue", "not covered", "no output"),
    "left_padding": ("logits_btv[~given['mask_bt']] = np.nan", "pass", ""),
}  # fmt: skip


def test_what_a_command_does_is_its_row(tmp_path: Path) -> None:
    results = _judged(tmp_path, {name: code for name, (code, *_) in ROWS.items()})
    for name, (_, status, message) in ROWS.items():
        assert (results[name].status, mentions(results[name].message, message)) == (status, True), results[name]


def test_a_command_that_crashes_is_asked_for_what_is_left(tmp_path: Path) -> None:
    """A partly written file does not count as output."""
    torn = "file.write_bytes(b'\\x93NUMPY torn'); print('first line', file=sys.stderr); os.kill(os.getpid(), signal.SIGKILL)"
    results = _judged(tmp_path, {"one_token": torn})
    assert results["one_token"].status == "crash" and "signal 9" in results["one_token"].message
    assert Counter(result.status for result in results.values()) == {"crash": 1, "pass": len(NAMES) - 1}


def _runs(folder: Path) -> list[str]:
    """Returns the folders of the calls so far, without the number of prompts."""
    return [line.split()[0] for line in (folder / "log.txt").read_text().splitlines()]


DIES = "sys.exit(f'no weights in {folder}, {questions}, {answers}')"
LOST = ("skipped", UNSTARTED)


def test_a_command_that_dies_at_once_is_not_run_for_every_dtype(tmp_path: Path) -> None:
    command = _command(tmp_path, {"all": DIES})
    results = runner.run(_cases(), [command], ["float64", "float32", "bfloat16", "float16"], limit=20)
    died = [result for result in results if result.status == "crash"]
    assert all(mentions(result.message, "exit code 1 … no weights in FOLDER, PROMPTS, LOGITS") for result in died)
    assert [result.dtype for result in died] == _runs(tmp_path) == ["float64", "float64", "float32"]
    assert {(result.status, result.message) for result in results if result not in died} == {LOST}


def test_a_command_that_dies_in_some_dtypes_is_asked_in_the_others(tmp_path: Path) -> None:
    """Also one whose calls end in different ways."""
    command = _command(tmp_path, {"all": "Path(folder).name != 'bfloat16' and sys.exit(Path(folder).name)"})
    results = runner.run(_cases(), [command], ["float64", "float32", "bfloat16"], limit=20)
    assert _runs(tmp_path) == ["float64"] * 2 + ["float32"] * 2 + ["bfloat16"]
    assert {result.status for result in results if result.dtype == "bfloat16"} == {"pass"}


# the command's action for every prompt -> the message about all of them, after the expectation
ELSEWHERE = {
    "file = answers / f'{name}.npy'": "short.npy and 5 … code 0",
    "continue": "code 0",
    "os.path.exists(answers) and os.rmdir(answers); continue": "code 0",
    "(answers / '\\x1b[2J').touch(); continue": "\\x1b[2J … exit code 0",
}  # fmt: skip


@pytest.mark.parametrize("code", ELSEWHERE)
def test_a_command_that_gives_no_file_of_an_expected_name_is_told_which_was_expected(tmp_path: Path, code: str) -> None:
    results = _judged(tmp_path, {"all": code})
    said = f"LOGITS/0001-short.npy … {ELSEWHERE[code]}"
    assert {result.status for result in results.values()} == {"not covered"} and len(results) == len(NAMES)
    assert all(mentions(result.message, said) for result in results.values())


def test_a_single_file_of_another_name_is_said_too(tmp_path: Path) -> None:
    results = _judged(tmp_path, {"batch": "file = answers / 'batch.npy'"})
    assert mentions(results["batch"].message, "LOGITS/0003-batch.npy … batch.npy")
    assert Counter(result.status for result in results.values()) == {"not covered": 1, "pass": len(NAMES) - 1}


# a file instead of logits -> the status and the message
HOSTILE = {
    "os.mkfifo(file); continue": ("error", "not a file"),
    "os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 1 << 40); continue": ("error", "at most"),
    "file.write_bytes(b''); continue": ("error", "npy"),
    "np.save(file, np.array([None]), allow_pickle=True); continue": ("error", "npy"),
    "np.save(file, np.float32(1)); continue": ("differs", "must have shape"),
    "np.save(file, logits_btv.astype(complex)); continue": ("differs", "must be float32; got complex128"),
    "np.save(file, logits_btv.astype(np.float16)); continue": ("differs", "must be float32; got float16"),
    "np.save(file, np.zeros(7)); file.write_bytes("
    "file.read_bytes().replace(b'(7,), }          ', b'(7999999999,), }')); continue": ("error", "npy"),
    "np.save(file, logits_btv.astype(np.float64)); continue": ("pass", ""),
    "np.save(file, logits_btv.astype('>f4')); continue": ("pass", ""),
}  # fmt: skip


@pytest.mark.parametrize("code", every(3, HOSTILE))
def test_whatever_stands_in_the_place_of_logits_is_a_row(tmp_path: Path, code: str) -> None:
    status, message = HOSTILE[code]
    (result,) = _judged(tmp_path, {"all": code}, cases=_cases(names=("short",))).values()
    assert (result.status, mentions(result.message, message)) == (status, True), result
    assert result.message.isprintable()


@pytest.mark.parametrize(("said", "does", "refused", "passes"), every(3, [
    ({"rows": 1}, "assert len(logits_btv) == 1", {"batch", "right_padding", "left_padding"}, True),
    ({"masks": False}, "assert given['mask_bt'].all()", {"right_padding", "left_padding"}, True),
    ({"positions": "last"}, "logits_btv = logits_btv[:, -1]", {"right_padding"}, True),
    ({"positions": "last"}, "logits_btv = logits_btv[:, -1:]", {"right_padding"}, True),
    ({"positions": "last"}, "logits_btv = 1.01 * logits_btv[:, -1]", {"right_padding"}, False),
    ({"dtypes": ["bfloat16"]}, "pass", {*NAMES}, True),
    ({"config": {}, "dtypes": ["float32"], "components": ["transformer"]}, "pass", set[str](), True),
]))  # fmt: skip
def test_what_a_command_says_that_it_does_not_give_is_not_covered(
    tmp_path: Path, said: dict[str, object], does: str, refused: set[str], passes: bool
) -> None:
    results = _judged(tmp_path, {"all": does}, f"print({json.dumps(json.dumps(said))})")
    assert {name for name, result in results.items() if result.status == "not covered"} == refused
    assert {result.status for name, result in results.items() if name not in refused} <= {"pass" if passes else "differs"}, results


def test_a_declaration_that_is_none_is_one_row(tmp_path: Path) -> None:
    (result,) = _judged(tmp_path, {}, "print(json.dumps({'rows': 3}))").values()
    assert (result.status, mentions(result.message, "rows … 0 or 1; got 3")) == ("not started", True), result


def test_prompts_are_files_that_numpy_reads(tmp_path: Path) -> None:
    for name in ("encoder", "decoder"):
        (tmp_path / name).mkdir()
    cases = _cases("bert", (*NAMES, "two_segments"))
    names = prompts.write(tmp_path / "encoder", {case.name: case for case in cases})
    for case in cases:
        given = np.load(tmp_path / "encoder" / f"{names[case.name]}.npz", allow_pickle=False)
        assert {*given} == {"token_bt", "mask_bt", "segment_bt"}
        assert given["token_bt"].shape == given["mask_bt"].shape == given["segment_bt"].shape and given["mask_bt"].dtype == bool
        np.testing.assert_array_equal(given["token_bt"], case.inputs["source"])
        np.testing.assert_array_equal(given["mask_bt"], True if case.real_bt is None else case.real_bt)
        np.testing.assert_array_equal(given["segment_bt"], case.inputs.get("segment_bs", 0))
    name = prompts.write(tmp_path / "decoder", {"one": _cases()[0]})["one"]
    assert {*np.load(tmp_path / "decoder" / f"{name}.npz")} == {"token_bt", "mask_bt"}
