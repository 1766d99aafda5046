"""A port that is a command: it reads case files, and every outcome is a row."""

import dataclasses
import json
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from expectations import suite
from kinds import every
from messages import mentions
from safetensors.numpy import load_file, save_file

from rosettaformer.judge import runner
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation import components
from rosettaformer.judge.ports import command
from rosettaformer.judge.suite.case_files import write_cases
from rosettaformer.judge.templates import TEMPLATES

pytestmark = pytest.mark.product

CASES = suite()
PLAIN = next(case for case in CASES if case.id == "layer_norm/plain")
TEMPLATE = (TEMPLATES / "command_port.py").read_text()
# name of a case -> the action of a command, the status, and what the message mentions
ROWS = {
    "good": ("file.write_bytes(right)", "pass", ""),
    "twice": ("file.write_bytes(right)", "pass", ""),
    "random": ("file.write_bytes(right[:-8] + os.urandom(6) + right[-2:])", "error", "two evaluations"),
    "crash": ("os.kill(os.getpid(), signal.SIGKILL)", "crash", "signal 9"),
    "not covered": ("reason('{\"not covered\": \"a reason\"}')", "not covered", "a reason"),
    "unsupported": ("reason('{\"unsupported\": \"a reason\"}')", "unsupported", "a reason"),
    "error": ("reason('{\"error\": \"a reason\"}')", "error", "a reason"),
    "unclear": ("reason('[1]')", "error", "unclear.json … [1]"),
    "truncated": ("print('x' * 900000); file.write_bytes(right[:-8])", "error", "truncated.safetensors"),
    "silent": ("pass", "not covered", "no output"),
    "other_name": ("file.write_bytes(right.replace(b'output', b'result'))", "differs", "must return output; got result"),
    "torn": ("file.write_bytes(b'torn'); sys.exit(3)", "crash", "code 3"),
    "last": ("file.write_bytes(right)", "pass", ""),
}  # fmt: skip
BEGIN = """
import json, os, signal, sys, time
from pathlib import Path
if sys.argv[1] == "--describe":
    DESCRIBE
    sys.exit()
outputs, right = Path(sys.argv[2]), Path(RIGHT).read_bytes()

def reason(text):
    file.with_suffix(".json").write_text(text)

for case in json.loads(Path(sys.argv[1], "manifest.json").read_text())["cases"]:
    name, file = case["id"].partition("/")[2], outputs / case["outputs"]
"""


def _script(folder: Path, text: str) -> str:
    (folder / "script.py").write_text(text)
    return f"command:{sys.executable} {folder / 'script.py'}"


def _command(folder: Path, does: Mapping[str, str], describe: str = "pass") -> str:
    """Returns a command that runs the code under the name of each case."""
    save_file(components.answer(PLAIN), folder / "right.safetensors")
    start = BEGIN.replace("DESCRIBE", describe).replace("RIGHT", repr(str(folder / "right.safetensors")))
    return _script(folder, start + "".join(f"    if name == {name!r}:\n        {code}\n" for name, code in does.items()))


def _cases(*names: str) -> list[Case]:
    return [dataclasses.replace(PLAIN, name=name, twice=name in ("random", "twice")) for name in names]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, runner.Result]:
    command = _command(tmp_path_factory.mktemp("port"), {name: code for name, (code, *_) in ROWS.items()})
    results = runner.run(_cases(*ROWS), [command], ["float64"], limit=20)
    assert [result.case for result in results] == [f"layer_norm/{name}" for name in ROWS]
    return {result.case.partition("/")[2]: result for result in results}


@pytest.mark.parametrize("name", ROWS)
def test_what_a_command_does_is_its_row(rows: dict[str, runner.Result], name: str) -> None:
    _, status, message = ROWS[name]
    assert rows[name].status == status, rows[name]
    assert mentions(rows[name].message, message)


def test_a_command_that_hangs_is_ended_and_one_that_keeps_crashing_given_up(tmp_path: Path) -> None:
    does = {"good": ROWS["good"][0], "hang": "time.sleep(600)", "last": ROWS["good"][0]}
    results = runner.run(_cases(*does), [_command(tmp_path, does)], ["float64"], limit=1.5)
    assert [result.status for result in results] == ["pass", "hang", "pass"]
    assert results[1].message == "no answer within 1.5 s"
    cases = _cases("good", "twice", *map(str, range(4)))
    results = runner.run(cases, [_script(tmp_path, "import sys; sys.exit(len(sys.argv) - 1)")], ["float64"])
    assert [result.status for result in results] == ["crash"] * 4 + ["skipped"] * 2
    assert "exit code 2" in results[0].message
    assert "4 times" in results[-1].message


HOSTILE = {
    "a pipe": ("os.mkfifo(file)", "error", "layer_norm/plain.safetensors"),
    "a reason that is a device": ("os.symlink('/dev/zero', file.with_suffix('.json'))", "error", "layer_norm/plain.json"),
    "a broken link": ("os.symlink('nowhere', file)", "not covered", "no output"),
    "a sparse file": ("os.truncate(os.open(file, os.O_CREAT | os.O_WRONLY), 1 << 40)", "error", "plain.safetensors"),
    "a deep reason": ("reason('[' * 100000)", "error", "nested"),
    "a reason of escapes": (r"""reason('{"error": "a\\u001b[2Jb\\u0007\\ud800"}')""", "error", r"ab\x07\ud800"),
    "a fork": ("os.fork() or time.sleep(600)", "not covered", "no output"),
    "a flood": ("[os.write(2, b'x' * 65536) for _ in range(2000)]; sys.exit(3)", "crash", "code 3: x"),
    "files": ("[(time.sleep(0.2), (file.parent / str(i)).touch()) for i in range(1000)]", "hang", "no answer within 1.5 s"),
    "no folder": ("import shutil; shutil.rmtree(outputs); outputs.symlink_to('/')", "not covered", "no output"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_a_command_leaves_as_an_answer_is_a_row_soon(tmp_path: Path, name: str) -> None:
    body, status, message = HOSTILE[name]
    start = time.monotonic()
    rows = runner.run(_cases("plain"), [_command(tmp_path, {"plain": body})], ["float64"], limit=1.5)
    assert time.monotonic() - start < 1.5 + 2
    assert (rows[0].status, [row.status for row in rows[1:]]) == (status, ["left over"] if name == "a fork" else [])
    assert mentions(rows[0].message, message)
    assert rows[0].message.isprintable()


@pytest.mark.parametrize(
    "describe", ["while True: print('x' * 100000)", "os.fork() or time.sleep(600)", "print('[' * 100000)", "time.sleep(600)", "os.close(1)"]
)
def test_a_command_that_says_nothing_of_itself_is_asked_soon(tmp_path: Path, describe: str) -> None:
    start = time.monotonic()
    rows = runner.run(_cases("plain"), [_command(tmp_path, {"plain": "pass"}, describe)], ["float64"], limit=1.5)
    assert time.monotonic() - start < 1.5 + 2
    assert (rows[0].status, "no output" in rows[0].message) == ("not covered", True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("./no_such_program --fast", "./no_such_program"),
        (__file__, "executable"),
        ("", "command"),
        ("FOLDER/program", "Exec format error"),
        ("'open", 'command … "\'open"'),
    ],
)
def test_a_command_that_cannot_be_run_is_one_row(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "program").write_bytes(b"\x00\x01garbage")
    (tmp_path / "program").chmod(0o755)
    results = runner.run(_cases("good", "last"), [f"command:{line.replace('FOLDER', str(tmp_path))}"], ["float64", "float32"])
    assert [result.status for result in results] == ["not started"]
    assert mentions(results[0].message, message)


@pytest.mark.parametrize(
    ("said", "status", "message"),
    every(3, [
        ('{"config": {"model_width": 12}}', "pass", ""),
        ("no JSON", "pass", ""),
        ('{"dtypes": ["float32"]}', "not covered", "float64"),
        ('{"components": ["softmax"]}', "not covered", "layer_norm"),
        ('{"dtypes": "float32"}', "not started", "--describe … 'float32'"),
        ('{"components": ["layernorm"]}', "not started", "got 'layernorm' (nearest: layer_norm)"),
        ('{"config": {"width": 12}}', "not started", "port's … 'width'"),
    ]),
)  # fmt: skip
def test_what_a_command_says_of_itself_is_heeded(tmp_path: Path, said: str, status: str, message: str) -> None:
    name = _script(tmp_path, TEMPLATE.replace("print(json.dumps(ABOUT))", f"print({said!r})"))
    results = runner.run(_cases("plain"), [name], ["float64"])
    assert [result.status for result in results] == [status], results
    assert mentions(results[0].message, message)


def test_case_files_are_complete_and_need_json_and_safetensors_only(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.id == "multi_head_attention/per_head_weights").at("float32")
    write_cases(tmp_path, {"float32/here.safetensors": case})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (row,) = manifest["cases"]
    arrays = load_file(tmp_path / row["file"])
    assert (row["id"], row["component"], row["dtype"]) == (case.id, case.component, "float32")
    assert (row["outputs"], row["inputs"]) == ("float32/here.safetensors", {"return_weights": True})
    assert row["config"] == case.config.to_dict()
    given = {f"inputs.{name}": value for name, value in case.inputs.items() if isinstance(value, np.ndarray)}
    given |= {f"parameters.{name}": value for name, value in case.parameters.items()}
    assert arrays.keys() == given.keys()
    for name, value in given.items():
        assert arrays[name].dtype == value.dtype
        np.testing.assert_array_equal(arrays[name], value)


def test_batches_bound_the_disk_and_keep_every_case_in_order() -> None:
    cases = [*_cases("good", "twice", "last"), *_cases("good")]
    assert [len(batch) for batch in command.batches(cases)] == [3, 1]  # the second "good" would have the path of the first
    assert [[case.name for case in batch] for batch in command.batches(cases, 1)] == [[case.name] for case in cases]


def test_the_example_of_the_page_conforms(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-port.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    cases = [case for case in CASES if case.component in ("layer_norm", "softmax")]
    results = runner.run(cases, [_script(tmp_path, example)], ["float64", "float32"])
    covered = [result for result in results if "fixes" not in result.message]
    assert {result.status for result in covered if result.component == "layer_norm"} == {"pass", "empty"}
    assert {result.status for result in covered if result.component == "softmax"} == {"not covered"}
