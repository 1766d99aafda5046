"""Files larger than any valid one: rejected in seconds with little memory, each with one short message."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from checkpoint_models import CONFIG, CONVERT, FROM_TORCH, random_parameters
from forked import Forks
from kinds import conformance
from messages import mentions

from reference_numpy import parameters
from rosettaformer.files.checkpoints import canonical, container

FORTY = 40 * 10**9


def sparse(path: Path, tensors: dict[str, tuple[int, ...]], metadata: dict[str, str] | None = None) -> Path:
    """Writes a sparse file of float32 zeros."""
    path.unlink(missing_ok=True)
    kinds = {name: (np.float32, shape) for name, shape in tensors.items()}
    with container.open_places(path, kinds, metadata or {}):
        pass
    os.truncate(path, path.stat().st_size + 4 * sum(map(math.prod, tensors.values())))
    return path


@pytest.mark.conformance
@pytest.mark.parametrize("name", ["w", "logits.bias", "source_embedding.table"])
def test_a_sparse_tensor_of_forty_gigabytes_is_not_read(command: Forks, tmp_path: Path, name: str) -> None:
    shapes = {key: array.shape for key, array in random_parameters(CONFIG).items()} | {name: (FORTY // 400, 100)}
    path = sparse(tmp_path / "a.safetensors", shapes, canonical.metadata(CONFIG))
    said = command.run("inspect", path).assert_refused()
    assert f"unexpected {name}" in said or f"{name} must have shape" in said
    command.run("convert", path, tmp_path / "b", *CONVERT).assert_refused()
    command.run("check", "torch", "--checkpoint", path).assert_refused()
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_shard_of_forty_gigabytes_and_a_model_that_needs_them(command: Forks, tmp_path: Path) -> None:
    canonical.save(tmp_path / "model", CONFIG, random_parameters(CONFIG), max_shard_bytes=5000)
    shard = sorted((tmp_path / "model").glob("*.safetensors"))[0]
    shapes = {name: array.shape for name, array in container.read(shard).tensors.items()}
    sparse(shard, shapes | {next(iter(shapes)): (10**10,)}, canonical.metadata(CONFIG))
    command.run("inspect", tmp_path / "model").assert_refused()
    big = CONFIG.replace(model_width=10**6, target_vocabulary=10**6, source_vocabulary=10**6)
    path = sparse(tmp_path / "big.safetensors", parameters.shapes(big), canonical.metadata(big))
    assert "memory" in command.run("inspect", path).assert_refused()


def test_a_foreign_file_of_forty_gigabytes_is_listed(command: Forks, tmp_path: Path) -> None:
    found = command.run("inspect", sparse(tmp_path / "a.safetensors", {"w": (FORTY // 4,), "v": (2, 3)}), "--tensors")
    found.assert_modest()
    assert found.code == 0 and "10000000000" in found.out
    assert "no torch.nn.Transformer" in command.run("convert", tmp_path / "a.safetensors", tmp_path / "b", *FROM_TORCH).assert_refused()


@pytest.mark.conformance
def test_more_than_a_hundred_thousand_tensors(command: Forks, tmp_path: Path) -> None:
    path = sparse(tmp_path / "a.safetensors", {f"tensor_{index}": (1,) for index in range(100_001)}, canonical.metadata(CONFIG))
    for arguments in (("inspect", path), ("convert", path, tmp_path / "b", *FROM_TORCH)):
        assert mentions(command.run(*arguments).assert_refused(), "100000 … holds 100001")


@pytest.mark.conformance
@pytest.mark.parametrize("prefix", ["x.", "encoder.layers.0.self_attn."])
def test_ninety_nine_thousand_tensors_are_compared_with_the_models(command: Forks, tmp_path: Path, prefix: str) -> None:
    fewer = {f"{prefix}tensor_{index}": (1,) for index in range(99_000)}
    own = {name: array.shape for name, array in random_parameters(CONFIG).items()}
    path = sparse(tmp_path / "a.safetensors", own | fewer, canonical.metadata(CONFIG))
    assert "and 98980 more" in command.run("inspect", path).assert_refused()
    missing = sparse(tmp_path / "b.safetensors", fewer, canonical.metadata(CONFIG))
    assert "more" in command.run("inspect", missing).assert_refused()
    command.run("convert", path, tmp_path / "c", *FROM_TORCH).assert_refused()
    listed = command.run("inspect", sparse(tmp_path / "d.safetensors", fewer), "--tensors")
    listed.assert_modest()
    assert listed.code == 0 and "and 98000 more" in listed.out


@pytest.mark.parametrize("files", [9_000, 90_000, pytest.param(200_000, marks=pytest.mark.conformance)])
def test_an_index_of_very_many_files(command: Forks, tmp_path: Path, files: int) -> None:
    weight_map = {f"encoder.layers.{index}.w": f"{index}.safetensors" for index in range(files)}
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": canonical.metadata(CONFIG), "weight_map": weight_map}))
    said = command.run("inspect", path).assert_refused()
    wanted = {9_000: "missing", 90_000: "files … 10000; got 90000", 200_000: "tensors … 100000; got 200000"}
    assert mentions(said, wanted[files])


def test_an_index_of_very_many_tensors_in_few_files(command: Forks, tmp_path: Path) -> None:
    canonical.save(tmp_path / "model", CONFIG, random_parameters(CONFIG), max_shard_bytes=5000)
    path = tmp_path / "model" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    shards = sorted(set(index["weight_map"].values()))
    index["weight_map"] |= {f"tensor.{number}": shards[number % len(shards)] for number in range(99_000)}
    path.write_text(json.dumps(index))
    assert "weight_map" in command.run("inspect", path).assert_refused()


@pytest.mark.parametrize("part", ["[", *map(conformance, ('{"a":', "[],", " ", '"', "1"))])
@pytest.mark.parametrize("size", [10_000_000, pytest.param(40_000_000, marks=pytest.mark.conformance)])
def test_an_index_of_one_thing_repeated(command: Forks, tmp_path: Path, part: str, size: int) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text("[" + part * (size // len(part)))
    command.run("inspect", path).assert_refused()
