"""Checkpoints of several processes: each writes its part one tensor at a time; all parts appear, or none."""

import errno
import json
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_models import SIZES, assert_same_bits
from invoke import succeeded
from messages import mentions
from thread_groups import in_threads
from training_runs import edit

from reference_numpy import parameters, preset
from reference_numpy.sharding import Group
from rosettaformer.common.meshes import together
from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import canonical, container
from rosettaformer.use.training import checkpoint_files
from rosettaformer.use.training.checkpoint_store import Store
from rosettaformer.use.training.progress import Progress

CONFIG = preset("feed_forward_dropout", **SIZES | {"target_vocabulary": 37, "encoder_layers": 1})
TENSORS = len(parameters.shapes(CONFIG))
PARTS = ("parameters", "first_moment", "second_moment")


def whole_state(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        f"{part}.{name}": rng.normal(size=shape).astype(np.float32) for part in PARTS for name, shape in parameters.shapes(CONFIG).items()
    }


def one_by_one(group: Group, state: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields tensors as a Trainer does: collectively, each a new array, after the previous one is freed."""
    before = lambda: None  # noqa: E731
    for name, value in state.items():
        group.any(False)
        assert before() is None or sys.exc_info()[0], f"a tensor is held when {name} comes"
        array = value.copy()
        before = weakref.ref(array)
        yield name, array
        del array


def saved(folder: Path, count: int, state: dict[str, np.ndarray], steps: int = 7) -> list[Any]:
    """Saves a checkpoint in `count` threads; returns their errors."""
    done = Progress(seed=0, steps=steps)
    return in_threads(count, lambda group: Store(folder, group=group).save(CONFIG, one_by_one(group, state), done))


@pytest.mark.parametrize("count", [1, 2, 3, TENSORS + 2])
def test_every_process_writes_its_part_and_any_number_reads_them(tmp_path: Path, count: int) -> None:
    state = whole_state()
    assert saved(tmp_path, count, state) == [None] * count
    (path,) = Store(tmp_path).paths()
    names, most = sorted(file.name for file in path.iterdir()), min(count, TENSORS)
    wanted = ["model.safetensors", "optimizer.safetensors"] if count == 1 else [
        name
        for kind, parts in (("model", most), ("optimizer", min(count, 2 * TENSORS)))
        for name in [*(f"{kind}-{number:05}-of-{parts:05}.safetensors" for number in range(1, parts + 1)), f"{kind}.safetensors.index.json"]
    ]  # fmt: skip
    assert names == sorted([*wanted, "progress.json"])
    for readers in (1, 2):
        found = in_threads(readers, lambda group: Store(tmp_path, group=group).newest(CONFIG))
        for (read, progress), problems in found:
            assert not problems and progress == Progress(seed=0, steps=7)
            assert_same_bits({name: read[name] for name in state}, state)


def test_parts_are_of_equal_bytes_and_each_tensor_is_whole_in_one(tmp_path: Path) -> None:
    assert checkpoint_files.deal({"a": 5, "b": 1, "c": 4, "d": 4, "e": 3}, 2) == [["a", "e", "b"], ["c", "d"]]
    assert checkpoint_files.deal({"a": 5}, 3) == [["a"]]
    saved(tmp_path, 3, whole_state())
    sizes = [file.stat().st_size for file in tmp_path.glob("checkpoints/*/optimizer-*.safetensors")]
    assert len(sizes) == 3 and max(sizes) - min(sizes) < 5000


def test_our_readers_take_the_index(tmp_path: Path) -> None:
    state = whole_state()
    saved(tmp_path, 2, state)
    (index,) = Store(tmp_path).models()
    assert index.name == "model.safetensors.index.json"
    checkpoint = canonical.load(index)
    assert checkpoint.config == checkpoints.load(index).config == CONFIG  # `check --checkpoint` reads it
    assert_same_bits(checkpoint.parameters, {name: state[f"parameters.{name}"] for name in checkpoint.parameters})
    assert "decoder.layers.0.self_attention.query.kernel" in succeeded("inspect", index, "--tensors").out
    succeeded("convert", index, tmp_path / "one.safetensors", "--to", "canonical")
    assert_same_bits(canonical.load(tmp_path / "one.safetensors").parameters, checkpoint.parameters)


def test_the_best_model_and_the_average_are_one_file_written_tensor_by_tensor(tmp_path: Path) -> None:
    states = [whole_state(seed) for seed in (0, 1)]
    for steps, state in enumerate(states, start=1):
        saved(tmp_path, 2, state, steps)
    done = in_threads(3, lambda group: Store(tmp_path, group=group).save_best(CONFIG, one_by_one(group, states[1])))
    assert done == [None] * 3
    Store(tmp_path).save_average()
    store = Store(tmp_path)
    best, mean = canonical.load(store.best).parameters, canonical.load(store.average).parameters
    for name, value in best.items():
        np.testing.assert_array_equal(value, states[1][f"parameters.{name}"])
        pair = [state[f"parameters.{name}"].astype(np.float64) for state in states]
        np.testing.assert_array_equal(mean[name], np.mean(pair, axis=0).astype(np.float32))
        np.testing.assert_array_equal(store.averaged()[f"parameters.{name}"], mean[name])
        np.testing.assert_array_equal(store.averaged()[f"first_moment.{name}"], states[1][f"first_moment.{name}"])


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(("module", "name"), [(container, "open_places"), (checkpoint_files, "digest")], ids=["at first", "at last"])
def test_a_disk_that_is_full_for_one_process_ends_all_and_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, module: Any, name: str
) -> None:
    """One process reports the reason; the others consume every tensor, and none waits."""
    saved(tmp_path, 3, whole_state(), 4)
    before, real = sorted(tmp_path.rglob("*")), getattr(module, name)

    def full(path: Path, *arguments: Any) -> Any:
        if path.name.startswith(f"optimizer-0000{rank + 1}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *arguments)

    monkeypatch.setattr(module, name, full)
    errors = saved(tmp_path, 3, whole_state(), 5)
    assert [type(error) for index, error in enumerate(errors) if index != rank] == [together.Elsewhere] * 2
    assert "No space left" in str(errors[rank])
    assert isinstance(errors[rank], OSError if rank == 0 else together.OneProcess)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_tensor_that_is_not_finite_or_missing_is_not_saved(tmp_path: Path) -> None:
    state = whole_state()
    name = f"first_moment.{next(iter(parameters.shapes(CONFIG)))}"
    assert [error for error in saved(tmp_path, 2, state | {name: state[name] * np.nan}) if "must be finite" in str(error)]
    del state[name]
    assert [error for error in saved(tmp_path, 2, state) if f"missing {name}" in str(error)]
    assert not Store(tmp_path).paths()


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def reindex(path: Path) -> None:
    """Swaps the files of two tensors in the index."""
    found = json.loads(path.read_text())
    files = found["weight_map"]
    one, other = next((a, b) for a in files for b in files if files[a] != files[b])
    files[one], files[other] = files[other], files[one]
    path.write_text(json.dumps(found))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a part is missing": (lambda path: (path / "model-00002-of-00003.safetensors").unlink(), "missing"),
    "a bit of a part": (lambda path: flip(path / "model-00002-of-00003.safetensors"), "SHA-256"),
    "a bit of the moments": (lambda path: flip(path / "optimizer-00001-of-00003.safetensors"), "SHA-256"),
    "another part": (
        lambda path: shutil.copy(path / "model-00001-of-00003.safetensors", path / "model-00009-of-00009.safetensors"),
        "00009",
    ),
    "no index": (lambda path: (path / "optimizer.safetensors.index.json").unlink(), "optimizer.safetensors"),
    "the index": (lambda path: reindex(path / "model.safetensors.index.json"), "weight_map"),
    "a name outside": (lambda path: edit(path / "progress.json", lambda fields: fields["sha256"].update({"../x": ""})), "sha256"),
    "no digest": (lambda path: edit(path / "progress.json", lambda fields: fields["sha256"].popitem()), "SHA-256"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_part_gives_way_to_the_checkpoint_before_in_every_process(tmp_path: Path, name: str) -> None:
    for steps in (4, 5):
        saved(tmp_path, 3, whole_state(steps), steps)
    change, message = DAMAGE[name]
    change(Store(tmp_path).paths()[-1])
    found = in_threads(2, lambda group: Store(tmp_path, group=group).newest(CONFIG))
    for (state, progress), problems in found:
        assert progress.steps == 4 and len(problems) == 1
        assert_same_bits({name: state[name] for name in whole_state()}, whole_state(4))
    assert mentions(found[0][1][0], message)


def test_a_checkpoint_that_one_process_cannot_take_is_taken_by_none(tmp_path: Path) -> None:
    for steps in (4, 5):
        saved(tmp_path, 2, whole_state(), steps)

    def newest(group: Group) -> int:
        def take(state: Any, progress: Progress) -> None:
            if group.rank == 1 and progress.steps == 5:
                raise ValueError("it does not fit")

        return Store(tmp_path, group=group).newest(CONFIG, take)[0][1].steps

    assert in_threads(2, newest) == [4, 4]
