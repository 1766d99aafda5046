"""Changed files of a run: rejected with one message, or the previous checkpoint is used."""

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import invoke
import numpy as np
import pytest
from kinds import every
from messages import mentions
from training_runs import TINY, edit, fields, log, train, tree

from rosettaformer.common import reading
from rosettaformer.files.checkpoints import canonical, container
from rosettaformer.use.training.checkpoint_files import digest
from rosettaformer.use.training.checkpoint_store import Store
from rosettaformer.use.training.manifest import Manifest

LAST = "checkpoints/step-00000004"


def refused(run: Path, *arguments: object, stdin: bytes = b"") -> str:
    """Returns the only message of a resume that fails quickly and writes nothing."""
    before = tree(run)
    errors = invoke.refused(*(arguments or ("train", "--out", run, "--resume", "--steps", 6)), stdin=stdin)
    assert tree(run) == before
    return errors


# the manifest

NUMBERS = ("vocabulary", "max_length", "batch_tokens", "buckets", "seed", "warmup", "microbatches")
BAD = [10**400, -1, "1", True, None, [1], {}, 1.5, float("nan")]


@pytest.mark.parametrize("value", BAD, ids=[f"{value!r:.9}" for value in BAD])
def test_every_field_is_checked_and_all_problems_are_listed(run: Path, value: Any) -> None:
    edit(run / "run.json", lambda fields: fields["fixed"].update(dict.fromkeys(NUMBERS, value)))
    edit(run / "run.json", lambda fields: fields["free"].update(dict.fromkeys(("steps", "keep", "sample"), value)))
    errors = refused(run)
    for name in (*(f"fixed.{name}" for name in NUMBERS), "free.steps", "free.keep", "free.sample"):
        assert f"{name} must be" in errors


HANGS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "limits": (lambda fields: fields["limits"].update({"16": 10**7}), "limits … map"),
    "limits of no length": (lambda fields: fields["limits"].update({"10000000": 4}), "limits … map"),
    "limits that are none": (lambda fields: fields.update(limits={}), "limits … map"),
    "limits and max_length": (
        lambda fields: (fields["limits"].update({"16": 10**4}), fields["fixed"].update(max_length=10**4)), "limits … data",
    ),
    "max_length": (lambda fields: fields["fixed"].update(max_length=10**7), "fixed.max_length … 1 … 32768"),
    "length": (lambda fields: fields["task"].update(length=10**7), "must be at most 20000000 letters"),
    "microbatches": (lambda fields: fields["fixed"].update(microbatches=10**7), "microbatches … 80"),
    "number-words": (lambda fields: fields.update(task={"name": "number-words", "limit": 10**9}), "limit … 1000000"),
    "task type": (lambda fields: fields["task"].update(length="a"), "task.length"),
    "task name": (lambda fields: fields["task"].update(name=["copy"]), "task.name must be one of"),
    "epsilon": (lambda fields: fields["config"].update(epsilon=10**400), "epsilon must be a finite number"),
    "fixed": (lambda fields: fields["fixed"].pop("seed"), "fixed.seed is missing"),
    "unknown": (lambda fields: fields.update(more=1), "more is unknown"),
    "mesh": (lambda fields: fields["free"].update(mesh="data=0"), "free.mesh"),
    "version": (lambda fields: fields.update(version=2), "version must be one of 1"),
    "nothing": (lambda fields: fields.clear(), "run.json … run's"),
}  # fmt: skip


@pytest.mark.parametrize("name", HANGS)
def test_numbers_that_no_run_has_are_refused_before_anything_is_allocated(run: Path, name: str) -> None:
    change, message = HANGS[name]
    edit(run / "run.json", change)
    assert mentions(refused(run), message)


def test_more_buckets_or_tokens_than_data_are_as_many_as_data(run: Path) -> None:
    edit(run / "run.json", lambda fields: fields["fixed"].update(batch_tokens=10**15))
    assert mentions(refused(run), "seed … position … data")
    edit(run / "run.json", lambda fields: fields["fixed"].update(batch_tokens=64, buckets=10**15))
    train(run, "--resume", "--steps", 5)


@pytest.mark.parametrize("content", ["[" * 500_000, '{"a":' * 100_000, "[1]", "1", '"x"', "null", "\udc00".encode(errors="surrogatepass")])
def test_other_json_is_refused(run: Path, content: str | bytes) -> None:
    for file in ("log.jsonl", "tokens.json", "run.json"):  # the first written is the last read
        (run / file).write_bytes((content.encode() if isinstance(content, str) else content) + b"\n")
        assert file in refused(run)


def test_a_changed_manifest_is_refused(run: Path) -> None:
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"batch_tokens": 64', '"batch_tokens": 65'))
    assert mentions(refused(run), "fields … been")


# checkpoints


def newest(folder: Path) -> dict[str, np.ndarray]:
    found, _ = Store(folder).newest(Manifest.read(folder).config)
    assert found
    return found[0]


@pytest.fixture(scope="module")
def expected(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Returns the state and the log of the run without its newest checkpoint."""
    folder = Path(shutil.copytree(trained, tmp_path_factory.mktemp("before") / "run"))
    shutil.rmtree(folder / LAST)
    train(folder, "--resume", "--steps", 6)
    return newest(folder), log(folder)


def replaced(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda run: (run / LAST / name).write_bytes(change((run / LAST / name).read_bytes()))


def flip(content: bytes) -> bytes:
    """Flips the last bit."""
    return content[:-1] + bytes([content[-1] ^ 1])


def progress(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda run: edit(run / LAST / "progress.json", change)


def moments(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], object]:
    """Changes the optimizer's file and updates its digest."""

    def damage(run: Path) -> None:
        path = run / LAST / "optimizer.safetensors"
        tensors = {name: np.array(value) for name, value in container.read(path).tensors.items()}
        change(tensors)
        path.unlink()
        container.write(path, tensors, {})
        edit(run / LAST / "progress.json", lambda fields: fields["sha256"].update({path.name: digest(path)}))

    return damage


HIDDEN = "encoder.layers.0.feed_forward.hidden.bias"
# the change of the newest checkpoint, and the message
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no moment": (moments(lambda t: t.pop(f"first_moment.{HIDDEN}")), "missing first_moment."),
    "NaN": (moments(lambda t: t[f"second_moment.{HIDDEN}"].fill(np.nan)), "must be finite"),
    "cut": (replaced("optimizer.safetensors", lambda content: content[:-100]), "optimizer.safetensors"),
    "a bit of the model": (replaced("model.safetensors", flip), "model.safetensors"),
    "seed": (progress(lambda fields: fields.update(seed=1)), ""),
    "steps": (progress(lambda fields: fields.update(steps=5)), ""),
    "batch": (progress(lambda fields: fields["position"].update(batch=4000)), ""),
    "beyond the epoch": (progress(lambda fields: fields.update(position={"epoch": 0, "batch": 4}, steps=4, stale=10**400)), ""),
    "type": (progress(lambda fields: fields.update(seconds="1")), ""),
    "digests": (progress(lambda fields: fields.update(sha256={"../../run.json": ""})), ""),
    **{
        f"progress of {content[:9]!r}": (replaced("progress.json", lambda _, content=content: content), "")
        for content in (b"[" * 500_000, b"{}", b"\xff", b"", b"1" * 10_000)
    },
}


@pytest.mark.parametrize("name", every(5, DAMAGE))
def test_a_damaged_checkpoint_gives_way_to_the_one_before(run: Path, expected: Any, name: str) -> None:
    """The run continues from the previous one as if the newest had never existed."""
    change, message = DAMAGE[name]
    change(run)
    errors = train(run, "--resume", "--steps", 6).err
    state, steps = expected
    assert log(run) == steps
    for parameter, value in newest(run).items():
        np.testing.assert_array_equal(state[parameter], value, err_msg=parameter)
    assert f"{LAST} cannot be read" in errors and mentions(errors, f"{LAST} … before it") and mentions(errors, message)


# the log


@pytest.mark.parametrize(
    "line", [b"[" * 5000, b"x" * 50_000, b'{"step": true}', b'{"event": "step", "step": 1, "loss": "x"}', b"{}", b"", b"\xff"]
)
def test_a_damaged_line_of_the_log_is_named(run: Path, line: bytes) -> None:
    log = (run / "log.jsonl").read_bytes().splitlines(keepends=True)
    (run / "log.jsonl").write_bytes(b"".join([*log[:2], line + b"\n", *log[2:]]))
    assert "log.jsonl, line 3: " in refused(run)


# links


LINKED = ("run.json", "tokens.json", "log.jsonl", "lock", "average.safetensors", "checkpoints", LAST, f"{LAST}/model.safetensors")


@pytest.mark.parametrize("name", LINKED)
def test_no_link_is_followed_out_of_the_folder(run: Path, tmp_path: Path, name: str) -> None:
    (run / name).rename(tmp_path / "outside")
    (run / name).symlink_to(tmp_path / "outside")
    assert f"{run / name} must be a f" in refused(run)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
@pytest.mark.parametrize("name", ["run.json", "tokens.json", "log.jsonl", "lock", f"{LAST}/progress.json"])
def test_what_is_no_file_is_not_waited_for(run: Path, name: str, make: Callable[[Path], None]) -> None:
    (run / name).unlink()
    make(run / name)
    assert f"{run / name} must be a file" in refused(run)


def test_a_new_run_follows_no_link_and_writes_nothing_before_it_is_sure(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.jsonl").symlink_to(tmp_path / "victim")
    assert mentions(refused(tmp_path, "train", "--out", tmp_path / "run", *TINY), "log.jsonl … file")
    refused(tmp_path, "train", "--out", tmp_path / "new", *TINY, "--backend", "numpy:cuda")


def test_the_folder_itself_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    train(tmp_path / "link", "--resume", "--steps", 5)
    assert canonical.load(run / "checkpoints/step-00000005/model.safetensors")


# lines


LONG = {
    "source": b"a" * 20_000_000,
    "empty": b"\n" * 400_000,
    "one": b"a\t" + "é".encode() * 49_999,
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_line_of_pairs_is_refused_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.tsv").write_bytes(LONG[name])
    errors = refused(tmp_path, "train", "--out", tmp_path / "run", "--task", "files", *fields("--data", tsv=tmp_path / "a.tsv", held_out=1))
    assert len(errors) < 3000 and ("must be" in errors or mentions(errors, "validation … set"))


def test_lines_are_those_of_the_file_and_a_long_one_is_one() -> None:
    content = b"a\n\n" + b"b" * (3 * reading.LONGEST_LINE) + b"\nc\r\n" + b"d" * reading.LONGEST_LINE
    found = [reading.decode(raw) for raw in reading.read_lines(io.BytesIO(content))]
    assert [text for text, _ in found] == ["a", "", "", "c", "d" * reading.LONGEST_LINE]
    assert [bool(problem) for _, problem in found] == [False, False, True, False, False]
