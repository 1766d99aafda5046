"""Mutated files of every supported kind, through the real command: rejected with one message, in bounded time and memory, nothing written.

A mutation that has no effect, or makes another valid file, is read; then the result must be correct.
"""

import contextlib
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from checkpoint_models import CHOICES, CONFIG, CONVERT, FLAGS, FROM_TORCH, NAMES, random_parameters
from expectations import suite
from forked import Forks, Outcome
from model_folders import byte_pairs
from mutations import mutate
from training_runs import MODEL, TINY, edit, fields, tree

from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import canonical, container
from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge.expectation import components
from rosettaformer.judge.suite import case_files
from rosettaformer.use.training.checkpoint_store import Store

LAST, SHARD = "checkpoints/step-00000004", "model/model-00001-of-00002.safetensors"
SETTINGS = [word for name, value in CHOICES.items() for word in ("--set", f"{name}={value}")]
DATA = ("--held-out", 2, *MODEL, "--backend", "numpy", "--vocabulary", 0, "--steps", 1, "--sample", 1, "--buckets", 1)
FILES = ("train", "--out", "run", "--task", "files")
SOFTMAX = ("--component", "softmax", "--dtype", "float32")
JUDGE = ("check", "--results", "given", *SOFTMAX)
GENERATE = ("generate", ".", "--prompt", "the fox", "--max-new-tokens", 2, "--backend", "numpy")
EMBED = ("embed", ".", "texts", "--backend", "numpy")
COPY = f"{sys.executable} -S copy_given.py"
COPYING = """
import shutil, sys
sys.argv[1] == "--describe" and sys.exit(1)
shutil.copytree("given", sys.argv[2], dirs_exist_ok=True)
"""
PORT = "from reference_numpy import softmax as reference\ndef softmax(case):\n    return reference.softmax(**case.inputs)\n"


@dataclass(frozen=True)
class Kind:
    """base: the folder that is copied. file: what is mutated. line: the command, run in the copy. codes: valid exit codes except 2.

    right: asserts, given the copy, that a command that exited with 0 did the right thing. stamp: the fingerprint is updated.
    """

    base: str
    file: str
    line: tuple[Any, ...]
    codes: tuple[int, ...] = (0,)
    right: Callable[[Path, Path, Outcome], None] = lambda copy, base, found: None
    stamp: bool = False
    others: tuple[str, ...] = ()


def same_tensors(copy: Path, base: Path, found: Outcome) -> None:
    """Asserts that the conversion equals what another reader of the mutated file reads."""
    expected = safetensors.numpy.load_file(copy / "a.safetensors")
    read = safetensors.numpy.load_file(copy / "b.safetensors")
    assert read.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(read[name], value)


def same_weights(copy: Path, base: Path, found: Outcome) -> None:
    """Asserts that the run continued like the unmutated one, from its last checkpoint or the previous one."""
    for name, value in canonical.load(Store(base / "after").models()[-1]).parameters.items():
        np.testing.assert_array_equal(canonical.load(Store(copy).models()[-1]).parameters[name], value)


def quiet(copy: Path, base: Path, found: Outcome) -> None:
    """Asserts that no warning shows our source, whatever an entry contains."""
    assert ".py:" not in found.err, found


RESUME = ("train", "--out", ".", "--resume", "--steps", 6)
KINDS = {
    "canonical, inspected": Kind("canonical", "a.safetensors", ("inspect", "a.safetensors")),
    "canonical, converted": Kind("canonical", "a.safetensors", ("convert", "a.safetensors", "b.safetensors", *CONVERT), right=same_tensors),
    "index": Kind("shards", "model/model.safetensors.index.json", ("inspect", "model"), others=(SHARD,)),
    "shard": Kind("shards", SHARD, ("convert", "model", "b.safetensors", *CONVERT)),
    "state dict": Kind("torch", "a.safetensors", ("convert", "a.safetensors", "b.safetensors", *SETTINGS, *FLAGS, *FROM_TORCH)),
    "pickle": Kind("torch", "a.pt", ("convert", "a.pt", "b.safetensors", *SETTINGS, *FLAGS, *FROM_TORCH)),
    "pickle, inspected": Kind("torch", "a.pt", ("inspect", "a.pt")),
    "checkpoint of a check": Kind("canonical", "a.safetensors", ("check", "port.py", "--checkpoint", "a.safetensors"), codes=(0, 1)),
    "start of a comparison": Kind(
        "canonical", "a.safetensors", ("compare-training", "a.safetensors", "--backend", "trainer.py", "--steps", 1), codes=(0, 1)
    ),
    "port": Kind("canonical", "port.py", ("check", "port.py", *SOFTMAX), codes=(0, 1)),
    "answer of a command": Kind("results", "softmax.safetensors", ("check", "--command", COPY, *SOFTMAX), codes=(0, 1)),
    "manifest": Kind("run", "run.json", RESUME, right=same_weights),
    "manifest, stamped": Kind("run", "run.json", RESUME, stamp=True),
    "tokens": Kind("run", "tokens.json", RESUME, right=same_weights),
    "log": Kind("run", "log.jsonl", RESUME, right=same_weights),
    "progress": Kind("run", f"{LAST}/progress.json", RESUME, right=same_weights),
    "progress, stamped": Kind("run", f"{LAST}/progress.json", RESUME, stamp=True),
    "optimiser": Kind("run", f"{LAST}/optimizer.safetensors", RESUME, right=same_weights, others=(f"{LAST}/model.safetensors",)),
    "model": Kind("run", f"{LAST}/model.safetensors", RESUME, right=same_weights, others=(f"{LAST}/optimizer.safetensors",)),
    "results": Kind("results", "softmax.safetensors", JUDGE, codes=(0, 1)),
    "reason": Kind("results", "reason.json", JUDGE, codes=(0, 1)),
    "deviations": Kind("results", "deviations.toml", (*JUDGE, "--deviations", "deviations.toml"), codes=(0, 1)),
    "pairs": Kind("pairs", "a.tsv", (*FILES, "--tsv", "a.tsv", *DATA)),
    "sources": Kind("pairs", "source.txt", (*FILES, "--source", "source.txt", "--target", "target.txt", *DATA)),
    "vectors": Kind("vectors", "manifest.json", ("vectors", "verify", "."), codes=(0, 1)),
    "folder, inspected": Kind("gemma2", "config.json", ("inspect", "."), right=quiet),
    "folder, converted": Kind("llama", "config.json", ("convert", ".", "out.safetensors"), right=quiet),
    "folder, generating": Kind("llama", "config.json", GENERATE, right=quiet),
    "folder, generating by defaults": Kind("llama", "generation_config.json", GENERATE, right=quiet),
    "folder, embedding": Kind("bert", "config.json", EMBED, right=quiet),
}  # fmt: skip
# of kinds with slow commands
WEIGHTS = {"vectors": 0.2} | dict.fromkeys(
    ("results", "reason", "deviations", "checkpoint of a check", "start of a comparison", "port", "answer of a command"), 0.5
)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory, command: Forks) -> Path:
    root = tmp_path_factory.mktemp("bases")
    for name in ("canonical", "torch", "results", "pairs", "shards"):
        (root / name).mkdir()
    canonical.save(root / "canonical" / "a.safetensors", CONFIG, random_parameters(CONFIG))
    (root / "canonical" / "port.py").write_text(PORT)
    (root / "canonical" / "trainer.py").write_text("from reference_numpy.training import Trainer\n")
    (root / "results" / "copy_given.py").write_text(COPYING)
    canonical.save(root / "shards" / "model", CONFIG, random_parameters(CONFIG), max_shard_bytes=12_000)
    for name in ("a.safetensors", "a.pt"):
        checkpoints.save(root / "torch" / name, CONFIG, random_parameters(CONFIG), "torch-transformer", **NAMES)
    size, _ = byte_pairs(root)
    for family in ("llama", "gemma2", "bert"):
        new.write(family, root / family, settings={"vocab_size": size})
        shutil.copy(root / "tokenizer.json", root / family)
        (root / family / "texts").write_text("the fox\n")
    _run(root / "run", command)
    _results(root / "results")
    lines = [(f"the source {index}", f"la fuente {index}") for index in range(40)]
    (root / "pairs" / "a.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in lines))
    for name, side in (("source", 0), ("target", 1)):
        (root / "pairs" / f"{name}.txt").write_text("".join(f"{pair[side]}\n" for pair in lines))
    assert command.run("vectors", "export", root / "vectors", "--component", "softmax", "--core", limit=120).code == 0
    return root


def _run(path: Path, command: Forks) -> None:
    """A run and its continuation, from the command in the test process: another process may sum in another order."""

    def run(folder: Path, *line: object) -> Outcome:
        found = command.run(*line, folder=folder)
        assert found.code == 0, found
        return found

    run(path.parent, "train", "--out", path, *TINY, "--steps", 4, *fields("--loop", save_every=2, sample=1))
    after = shutil.copytree(path, path.with_name("after"))
    run(after, *RESUME)
    shutil.move(after, path / "after")


def _results(path: Path) -> None:
    cases = [case.at("float32") for case in suite() if case.component == "softmax" and "float32" in case.dtypes]
    given = path / "given"
    for case in cases:
        target = given / case_files.answer_path(case)
        target.parent.mkdir(parents=True, exist_ok=True)
        container.write(target, {name: np.asarray(value, np.float32) for name, value in components.answer(case).items()}, {})
    first, second = (given / case_files.answer_path(case) for case in cases[:2])
    first.rename(path / "softmax.safetensors")
    first.symlink_to("../../../softmax.safetensors")
    second.unlink()
    (path / "reason.json").write_text('{"unsupported": "no kernel"}')
    second.with_suffix(".json").symlink_to("../../../reason.json")
    (path / "deviations.toml").write_text(
        f'[[deviation]]\ncase = "{cases[0].id}"\nport = "given"\nreason = "known"\nlink = "https://example.org/1"\ndtype = "float32"\n'
    )


def survive(name: str, seed: int, bases: Path, path: Path, command: Forks) -> None:
    """Applies one mutation and runs the command."""
    kind, rng = KINDS[name], random.Random(f"{name} {seed}")
    base, copy = bases / kind.base, path / "copy"
    shutil.copytree(base, copy, symlinks=True, ignore=shutil.ignore_patterns("after"))
    others = [
        *(bases / name for name in ("canonical/a.safetensors", "run/run.json", "pairs/a.tsv")),
        *(base / name for name in kind.others),
    ]
    how = mutate(copy / kind.file, rng, others)
    if kind.stamp and (copy / kind.file).is_file() and (copy / kind.file).stat().st_size < 1e8:
        with contextlib.suppress(ValueError, OSError, AttributeError, TypeError, RecursionError):  # not all fields need be left
            edit(copy / kind.file)
    before = tree(copy)
    found = command.run(*kind.line, folder=copy)
    note = f"{name}, {how}, seed {seed}: {found}"
    try:
        if found.code == 2:
            found.assert_refused()
            assert tree(copy) == before
        else:
            found.assert_modest()
            assert found.code in kind.codes
            if found.code == 0:
                kind.right(copy, base, found)
    except Exception as error:
        raise AssertionError(f"{note}\n{error}") from error
    finally:
        shutil.rmtree(copy)


def _failures(seeds: dict[str, range], bases: Path, path: Path, command: Forks) -> list[str]:
    failures = []
    for name, numbers in seeds.items():
        for seed in numbers:
            try:
                survive(name, seed, bases, path, command)
            except AssertionError as error:
                failures.append(str(error)[:1500])
    return failures


FAST = [name for name in KINDS if name not in WEIGHTS]


@pytest.mark.conformance
@pytest.mark.parametrize("names", [FAST, [*WEIGHTS]], ids=["fast", "slow"])
def test_unmutated_files_are_read(names: list[str], bases: Path, tmp_path: Path, command: Forks) -> None:
    for name in names:
        kind, copy = KINDS[name], tmp_path / name
        shutil.copytree(bases / kind.base, copy, symlinks=True, ignore=shutil.ignore_patterns("after"))
        found = command.run(*kind.line, folder=copy)
        assert found.code in kind.codes, (name, found)
        if found.code == 0:
            kind.right(copy, bases / kind.base, found)


@pytest.mark.conformance
def test_a_few_mutated_files_of_every_kind(bases: Path, tmp_path: Path, command: Forks) -> None:
    assert not _failures(dict.fromkeys(FAST, range(1)), bases, tmp_path, command)


@pytest.mark.conformance
@pytest.mark.parametrize("name", KINDS)
def test_hundreds_of_mutated_files(name: str, bases: Path, tmp_path: Path, command: Forks) -> None:
    """About 300, of all kinds together."""
    assert not _failures({name: range(round(12 * WEIGHTS.get(name, 1)))}, bases, tmp_path, command)
