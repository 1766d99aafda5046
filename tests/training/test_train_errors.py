"""A run's errors are one clear message and exit code 2, and the last good checkpoint stays."""

import contextlib
import errno
import json
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import refused, succeeded
from messages import mentions, naming
from training_runs import MODEL, TINY, fields, log, train

from reference_numpy.training import Trainer
from rosettaformer.use.training import options
from rosettaformer.use.training.checkpoint_store import Store
from rosettaformer.use.training.manifest import Manifest
from rosettaformer.use.training.run_log import Log


def newest(folder: Path) -> int:
    found, problems = Store(folder).newest(Manifest.read(folder).config)
    assert found is not None and not problems
    return found[1].steps


# the folder


def test_a_folder_that_holds_a_run_is_refused_without_resume(run: Path) -> None:
    assert "holds a run: continue it with --resume" in refused("train", "--out", run, *TINY)
    (run / "run.json").unlink()
    assert "holds a run" in refused("train", "--out", run, *TINY)


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    assert "holds no run: " in refused("train", "--out", tmp_path, "--resume")
    assert mentions(refused("train", "--out", tmp_path / "new"), "--task")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("where", ["file", "file/run", "link"])
def test_an_impossible_folder(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "deep")
    assert where.partition("/")[0] in refused("train", "--out", tmp_path / where, *TINY)


def test_an_unwritable_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the test raises the error itself."""
    real = Path.open

    def refuse(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) & set("wax+"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    assert "Permission denied" in refused("train", "--out", run, "--resume", "--steps", 8)
    assert newest(run) == 4


# the disk


@contextlib.contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """A context in which longer files are cut off at a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def goes_on(run: Path) -> None:
    train(run, "--resume", "--steps", 8)
    assert [entry["step"] for entry in log(run)] == [*range(1, 9)]


@pytest.mark.parametrize("size", [20_000, 60_000])
def test_a_full_disk(run: Path, size: int) -> None:
    """The model exceeds the first size, and the moments the second; the log exceeds neither."""
    names = {path.name for path in run.rglob("*")}
    with no_file_above(size):
        errors = refused("train", "--out", run, "--resume", "--steps", 8)
    assert mentions(errors, "6 … [Errno … 27] … File … 4")
    assert newest(run) == 4
    assert {path.name for path in run.rglob("*")} <= names | {"lock"}
    goes_on(run)


def test_a_disk_that_fills_within_the_log(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, path = Log.write, run / "log.jsonl"

    def write(log: Log, entry: Any) -> None:
        with no_file_above(path.stat().st_size + 14) if entry["step"] == 6 else contextlib.nullcontext():
            real(log, entry)

    with monkeypatch.context() as patched:
        patched.setattr(Log, "write", write)
        errors = refused("train", "--out", run, "--resume", "--steps", 8)
    assert "No space left on device" in errors and mentions(errors, "log.jsonl' … 4")
    assert not path.read_bytes().endswith(b"\n")
    goes_on(run)


# another run


def test_every_choice_that_the_run_made_otherwise_is_named(run: Path) -> None:
    changed = (*fields("--set", model_width=32, heads=2), "--recipe", "warmup=41", "--seed", 3)
    arguments = (*fields("--data", length=5, batch_tokens=64), *changed)
    errors = refused("train", "--out", run, "--resume", *arguments, "--steps", 5)
    assert mentions(errors, "differs … asked")
    for line in ("task length: the run has 4; got 5", "warmup: the run has 40; got 41", "model_width: the run has 16; got 32"):
        assert line in errors
    assert "seed: the run has 0; got 3" in errors
    assert "heads" not in errors and "batch_tokens" not in errors
    assert "task: the run has reverse; got copy" in refused("train", "--out", run, "--resume", "--task", "copy")
    assert mentions(refused("train", "--out", run, "--resume", "--data", "limit=3"), "limit … task")
    assert newest(run) == 4


def test_the_same_choices_may_be_given_again(run: Path) -> None:
    train(run, "--resume", *TINY, "--steps", 5)
    assert newest(run) == 5


def test_checkpoints_of_another_config(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    train(other, "--set", "epsilon=1e-5", "--steps", 4, *fields("--loop", save_every=2, sample=1))
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(other / "checkpoints", run / "checkpoints")
    errors = refused("train", "--out", run, "--resume", "--steps", 8)
    assert mentions(errors, "checkpoint … can") and mentions(errors, "run's")


def test_tokens_of_another_run(run: Path) -> None:
    text = json.loads((run / "tokens.json").read_text())
    text["model"]["dropout"] = 0.5
    (run / "tokens.json").write_text(json.dumps(text))
    assert mentions(refused("train", "--out", run, "--resume"), "tokens.json … run's")
    (run / "tokens.json").unlink()
    assert "holds no tokens" in refused("train", "--out", run, "--resume")


def test_data_that_have_changed(tmp_path: Path) -> None:
    tsv, run = tmp_path / "pairs.tsv", tmp_path / "run"
    tsv.write_text("".join(f"source {index}\ttarget {index}\n" for index in range(20)))
    data = fields("--data", tsv=tsv.name, held_out=2, vocabulary=0)  # relative to the folder of this call only
    words = ("--task", "files", *data, *MODEL, "--backend", "numpy", "--steps", 2, "--loop", "sample=1")
    succeeded("train", "--out", run, *words, folder=tmp_path)
    tsv.write_text(tsv.read_text().replace("target 3", "another"))
    assert mentions(refused("train", "--out", run, "--resume", "--steps", 4), "data … task")


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "progress.json"])
@pytest.mark.parametrize("content", [None, b"\xff" * 64])
def test_when_no_checkpoint_can_be_read_all_problems_are_listed(run: Path, file: str, content: bytes | None) -> None:
    for path in run.glob(f"checkpoints/*/{file}"):
        path.unlink() if content is None else path.write_bytes(content)
    errors = refused("train", "--out", run, "--resume", "--steps", 8)
    assert mentions(errors, "checkpoint … can")
    assert "step-00000004 cannot be read" in errors and "step-00000002 cannot be read" in errors


# training itself


def test_divergence_is_an_error_and_is_not_saved(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "train_step", lambda *_: np.nan)
    errors = refused("train", "--out", run, "--resume", "--steps", 8)
    assert "training has diverged: the loss of step 5 is nan" in errors and mentions(errors, "last … 4")
    assert newest(run) == 4 and len(log(run)) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--preset", "large"), "preset must be one of"),
        (("--set", "key_value_heads=3"), "key … h=2 … g=3"),
        (("--set", "width=5"), "unknown config field 'width'"),
        (("--set", "source_vocabulary=5"), "source_vocabulary … tokens … vocabulary"),
        (("--recipe", "clip_norm=0"), "clip_norm must be greater than 0, or None; got 0"),
        (("--loop", "average=6"), "average … keep … 6 … 5"),
        (("--data", "max_length=1"), "training … set"),
        (("--backend", "numpy:cuda"), "device must be cpu"),
    ],
)
def test_bad_choices(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    assert mentions(refused("train", "--out", tmp_path / "run", *TINY, *arguments), message)
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_decoder_is_refused() -> None:
    with pytest.raises(ValueError, match=naming("decoder_layers … 1 … 0")):
        options.config(options.FIXED | {"preset": "one_encoder_layer"}, 300)


def test_heads_follow_from_width_and_number_unless_they_are_set() -> None:
    told = options.config(options.FIXED | {"settings": ("model_width=96", "heads=6")}, 300)
    assert (told.key_size, told.value_size, told.key_value_heads) == (16, 16, 6)
    told = options.config(options.FIXED | {"settings": ("heads=8", "key_value_heads=2", "key_size=5")}, 300)
    assert (told.key_size, told.value_size, told.key_value_heads) == (5, 16, 2)
    big = options.config(options.FIXED | {"preset": "paper_big"}, 300)
    assert (big.model_width, big.key_size, big.dropout_rate, big.source_vocabulary) == (1024, 64, 0.3, 300)


def test_a_missing_backend_exits_3_with_its_install_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "impl_torch"]:
        monkeypatch.delitem(sys.modules, name)
    assert "[torch]'" in refused("train", "--out", run, "--resume", "--backend", "torch", code=3)
    assert Manifest.read(run).free["backend"] == "numpy"
