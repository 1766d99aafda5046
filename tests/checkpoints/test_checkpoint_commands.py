"""The commands that convert and inspect."""

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoint_models import CONFIG, CONVERT, DAMAGES, FLAGS, NAMES, QUERY, TIED, assert_same_bits, random_parameters, write_raw
from invoke import invoke, refused, succeeded
from messages import mentions

from reference_numpy import TransformerConfig, parameters
from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import canonical, container

TORCH = ("--from", "torch-transformer", "--to", "canonical")


def test_convert_there_and_back_with_options_of_the_config(tmp_path: Path) -> None:
    original = random_parameters(CONFIG)
    checkpoints.save(tmp_path / "state.safetensors", CONFIG, original, "torch-transformer", **NAMES)
    settings = ["heads=3", "padding_id=none", "scale_embedding=false", "epsilon=1e-3", "activation=gelu_tanh", "norm_placement=pre"]
    chosen = (*FLAGS, "--preset", "nn_transformer", *(word for text in settings for word in ("--set", text)))
    output = succeeded("convert", tmp_path / "state.safetensors", tmp_path / "a.safetensors", *TORCH, *chosen).out
    assert f"{parameters.count(CONFIG):,} parameters" in output and "float32" in output
    loaded = canonical.load(tmp_path / "a.safetensors")
    changes = {"padding_id": None, "scale_embedding": False, "epsilon": 1e-3, "activation": "gelu_tanh", "norm_placement": "pre"}
    assert loaded.config == CONFIG.replace(**changes)
    assert_same_bits(loaded.parameters, original)
    back = (tmp_path / "a.safetensors", tmp_path / "back.safetensors", "--from", "canonical", "--to", "torch-transformer")
    succeeded("convert", *back, *FLAGS, "--name", "prefix=model.")
    assert set(container.read(tmp_path / "back.safetensors").tensors) == {
        key.replace("transformer.", "model.") for key in container.read(tmp_path / "state.safetensors").tensors
    }


def test_convert_to_another_dtype_and_to_shards(tmp_path: Path) -> None:
    arrays = random_parameters(CONFIG, "float64")
    arrays[QUERY][0, 0, 0] = 1e5
    canonical.save(tmp_path / "a.safetensors", CONFIG, arrays)
    into = ("convert", tmp_path / "a.safetensors", tmp_path / "b", *CONVERT, "--max-shard-bytes", 4000)
    assert json.loads(succeeded(*into, "--dtype", "bfloat16", "--json").out)["dtype"] == "bfloat16"
    expected = {name: array.astype(ml_dtypes.bfloat16) for name, array in arrays.items()}
    assert_same_bits(canonical.load(tmp_path / "b").parameters, expected)
    large = refused("convert", tmp_path / "a.safetensors", tmp_path / "c.safetensors", *CONVERT, "--dtype", "float16")
    assert mentions(large, f"float16 … {QUERY}") and not (tmp_path / "c.safetensors").exists()
    assert mentions(refused(*into, "--force"), "b … shards")


def test_convert_replaces_only_by_force(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        canonical.save(tmp_path / name, CONFIG, random_parameters(CONFIG, seed=seed))
    before = (tmp_path / "b").read_bytes()
    both = (tmp_path / "a", tmp_path / "b", *CONVERT)
    assert mentions(refused("convert", *both), "b … --force")
    assert (tmp_path / "b").read_bytes() == before
    succeeded("convert", *both, "--force")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes() != before
    nowhere = tmp_path / "nowhere"
    assert f"the folder {nowhere} does not exist" in refused("convert", tmp_path / "a", nowhere / "b", *CONVERT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*TORCH, "--set", "heads"), "FIELD=VALUE; got 'heads'"),
        ((*TORCH, "--set", "head=3"), "unknown config field 'head' (nearest: heads)"),
        ((*TORCH, "--set", "heads=3", "--set", "heads=4"), "heads is set twice"),
        ((*TORCH, "--set", "heads=3", "--preset", "semilero"), "preset"),
        ((*TORCH, "--preset", "nn_transformer"), "heads"),
        (("--from", "torch-transformer", "--to", "torch-transformer"), "canonical"),
        (("--from", "canonical", "--to", "canonical", "--preset", "tiny"), "--preset … canonical … canonical"),
        (
            ("--from", "canonical", "--to", "torch-transformer", "--set", "heads=3"),
            "--set … canonical … torch-transformer",
        ),
        (("--from", "canonical", "--to", "canonical"), "torch.nn.Transformer"),
    ],
)
def test_convert_writes_nothing_when_anything_is_wrong(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    checkpoints.save(tmp_path / "state.safetensors", CONFIG, random_parameters(CONFIG), "torch-transformer")
    assert mentions(refused("convert", tmp_path / "state.safetensors", tmp_path / "a.safetensors", *arguments), message)
    assert os.listdir(tmp_path) == ["state.safetensors"]


def test_inspect_a_canonical_file(tmp_path: Path) -> None:
    arrays = random_parameters(TIED, "bfloat16")
    canonical.save(tmp_path / "a.safetensors", TIED, arrays)
    summary = " ".join(succeeded("inspect", tmp_path / "a.safetensors").out.split())
    stacks = f"family Transformer, encoder-decoder, {TIED.encoder_layers} + {TIED.decoder_layers} layers format canonical"
    counts = f"dtypes bfloat16 ({len(arrays)}) tensors {len(arrays)} parameters {parameters.count(TIED):,} ties target_embedding.table is "
    for text in (stacks, counts, "problems none config", f"model_width {TIED.model_width}"):
        assert mentions(summary, text)
    assert QUERY not in summary
    listed = succeeded("inspect", tmp_path / "a.safetensors", "--tensors").out
    assert " ".join(listed.split()).startswith(summary)
    for text in (QUERY, "d h k", "12 3 4"):
        assert mentions(listed, text)
    found = json.loads(succeeded("inspect", tmp_path / "a.safetensors", "--json").out)
    assert TransformerConfig.from_dict(found["config"]) == TIED and found["ties"] == parameters.ties(TIED) and found["dtype"] == "bfloat16"
    assert found["parameter_count"] == parameters.count(TIED)
    (row,) = (row for row in found["tensors"] if row["name"] == QUERY)
    values = arrays[QUERY].astype(np.float64)
    assert row == {
        "name": QUERY, "axes": "d h k", "dtype": "bfloat16", "shape": [12, 3, 4],
        "mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max(),
    }  # fmt: skip


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_inspect_a_foreign_file(tmp_path: Path, suffix: str) -> None:
    torch = pytest.importorskip("torch")
    state = {"[red]w": np.array([[1.0, np.nan]], np.float32), "empty": np.zeros((0, 3), np.float32), "steps": np.array([1, 3])}
    state["complex"] = np.ones(2, np.complex64)
    path = tmp_path / f"a{suffix}"
    if suffix == ".pt":
        torch.save({name: torch.from_numpy(array) for name, array in state.items()}, path)
    else:
        container.write(path, state, {"format": "pt"})
    summary = " ".join(succeeded("inspect", path).out.split())
    assert "family unknown" in summary and "tensors 4 parameters 6" in summary and "int64 (1)" in summary and "[red]w" not in summary
    assert "[red]w" in succeeded("inspect", path, "--tensors").out
    rows = {row["name"]: row for row in json.loads(succeeded("inspect", path, "--json").out)["tensors"]}
    assert [rows[name]["mean"] for name in ("steps", "[red]w", "complex")] == [2, None, None]
    assert rows["empty"]["shape"] == [0, 3]


def test_inspect_a_damaged_file_lists_all_problems(tmp_path: Path) -> None:
    arrays = random_parameters(CONFIG)
    for name in ("missing", "extra", "nan"):
        DAMAGES[name][0](arrays)
    path = write_raw(tmp_path / "a.safetensors", arrays)
    said = refused("inspect", path)
    result = invoke("inspect", path, "--json")
    problems = json.loads(result.out)["problems"]
    assert result.code == 2 and len(problems) == 3 and all(mentions(said, problem) for problem in problems)
    (tmp_path / "empty").touch()
    assert "is empty" in refused("inspect", tmp_path / "empty")
