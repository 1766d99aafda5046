"""Canonical files and shards: bit-exact round trips, complete writes, and every kind of damage."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoint_models import CONFIG, DAMAGES, QUERY, SIZES, TIED, assert_same_bits, random_parameters, write_raw
from messages import each_mentions, mentions

from reference_numpy import TransformerConfig, preset
from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import SHOWN, CheckpointError, canonical, container
from rosettaformer.files.checkpoints.strict import DTYPES

ENCODER = preset("one_encoder_layer", **SIZES | {"target_vocabulary": 37, "decoder_layers": 0})
EACH = pytest.mark.parametrize("config", [CONFIG, TIED, ENCODER], ids=["untied", "tied", "encoder"])


def problems_of(path: Path) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        canonical.load(path)
    found, text = caught.value.problems, str(caught.value)
    assert str(path) in text and all(mentions(text, problem) for problem in found[:SHOWN])
    assert text.endswith(f"\n  and {len(found) - SHOWN} more") == (len(found) > SHOWN)
    return found


# --- the canonical file


@pytest.mark.parametrize("dtype", DTYPES)
@EACH
def test_canonical_round_trip_is_bit_exact_and_equal_models_give_equal_files(tmp_path: Path, config: TransformerConfig, dtype: str) -> None:
    arrays = random_parameters(config, dtype)
    bounds = ml_dtypes.finfo(arrays[QUERY].dtype)
    arrays[QUERY].flat[:4] = -0.0, bounds.smallest_subnormal, -bounds.smallest_subnormal, bounds.max
    canonical.save(tmp_path / "a", config, dict(reversed(arrays.items())))
    canonical.save(tmp_path / "b", config, arrays)
    loaded = canonical.load(tmp_path / "a")
    assert loaded.config == config and (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert_same_bits(loaded.parameters, arrays)


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_the_bytes_are_those_of_the_package(tmp_path: Path, dtype: str | None) -> None:
    """Tensors of every dtype, in the layout of safetensors; its header is unordered, ours is sorted."""
    rng = np.random.default_rng(0)
    arrays = {f"{len(code)}{code}": rng.integers(0, 2, (3, 5)).astype(kind) for code, kind in container.DTYPES.items()}
    if dtype:
        arrays = {name: array.astype(np.float64) for name, array in arrays.items() if array.dtype.kind in "fiu"}
    container.write(tmp_path / "a", arrays | {"none": np.zeros((0, 3), dtype or np.int8)}, {"b": "é", "a": "1"}, dtype and np.dtype(dtype))
    wanted = {name: array.astype(dtype or array.dtype) for name, array in arrays.items()} | {"none": np.zeros((0, 3), dtype or np.int8)}
    theirs, ours = safetensors.numpy.save(wanted, {"b": "é", "a": "1"}), (tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(theirs)
    assert_same_bits(dict(sorted(container.read(tmp_path / "b").tensors.items())), dict(sorted(wanted.items())))
    ends = [8 + int.from_bytes(content[:8], "little") for content in (theirs, ours)]
    assert json.loads(ours[8 : ends[1]]) == json.loads(theirs[8 : ends[0]]) and ours[ends[1] :] == theirs[ends[0] :]


@pytest.mark.parametrize("stride", ["transposed", "reversed", "broadcast"])
def test_arrays_that_are_not_contiguous_keep_their_values(tmp_path: Path, stride: str) -> None:
    """safetensors 0.8.0 writes the memory as it is laid out, which is another tensor."""
    arrays = random_parameters(CONFIG)
    shape = arrays[QUERY].shape
    values = np.random.default_rng(1).normal(size=[2 * size for size in shape]).astype(np.float32)
    view = {
        "transposed": values[tuple(slice(size) for size in shape)].copy().transpose(2, 1, 0).copy().transpose(2, 1, 0),
        "reversed": values[: shape[0], : shape[1], shape[2] - 1 :: -1],
        "broadcast": np.broadcast_to(values[0, 0, : shape[2]], shape),
    }[stride]
    assert not view.flags.c_contiguous
    canonical.save(tmp_path / "a.safetensors", CONFIG, arrays | {QUERY: view})
    np.testing.assert_array_equal(canonical.load(tmp_path / "a.safetensors").parameters[QUERY], view)


def test_save_refuses_what_load_would(tmp_path: Path) -> None:
    arrays = random_parameters(CONFIG)
    arrays["logits.bias"] = np.full_like(arrays["logits.bias"], np.nan)
    arrays[QUERY] = arrays[QUERY].astype(np.float64)
    arrays["logits.kernal"] = arrays.pop("logits.kernel")
    with pytest.raises(CheckpointError) as caught:
        canonical.save(tmp_path / "a.safetensors", CONFIG, arrays)
    text = str(caught.value)
    assert "logits.bias must be finite" in text and f"{QUERY} must be float32" in text and "nearest: logits.kernal" in text
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["os.fsync", "os.replace", "rosettaformer.files.checkpoints.container.write"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "a.safetensors"
    canonical.save(path, CONFIG, random_parameters(CONFIG))
    before = path.read_bytes()
    real_write = container.write

    def fail(*arguments: Any, **options: Any) -> None:
        if call.endswith("container.write"):
            real_write(*arguments, **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(call, fail)
    with pytest.raises(OSError, match="No space left"):
        canonical.save(path, CONFIG, random_parameters(CONFIG, seed=1))
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.safetensors"]


def saved_shards(folder: Path, config: TransformerConfig = CONFIG) -> dict[str, np.ndarray]:
    arrays = random_parameters(config)
    canonical.save(folder, config, arrays, max_shard_bytes=5000)
    return arrays


def edit_index(folder: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    edit(index)
    path.write_text(json.dumps(index))
    return path


def test_shards_round_trip_by_folder_and_by_index(tmp_path: Path) -> None:
    arrays = saved_shards(tmp_path / "model", TIED)
    shards = sorted((tmp_path / "model").glob("*.safetensors"))
    assert len(shards) > 3 and all(path.stat().st_size < 5000 + 20000 for path in shards)
    for path in (tmp_path / "model", tmp_path / "model" / "model.safetensors.index.json"):
        loaded = canonical.load(path)
        assert loaded.config == TIED
        assert_same_bits(loaded.parameters, arrays)


@pytest.mark.parametrize("where", ["index", "shard"])
def test_the_metadata_of_shards_may_stand_in_the_index_or_in_one_of_them(tmp_path: Path, where: str) -> None:
    arrays = random_parameters(CONFIG)
    names = list(arrays)
    for number, part in enumerate((names[::2], names[1::2])):
        own = canonical.metadata(CONFIG) if (where, number) == ("shard", 1) else {}
        container.write(tmp_path / f"{number}.safetensors", {name: arrays[name] for name in part}, own)
    metadata = canonical.metadata(CONFIG) if where == "index" else {}
    weight_map = {name: f"{number % 2}.safetensors" for number, name in enumerate(names)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": metadata | {"total_size": 1}, "weight_map": weight_map}))
    loaded = canonical.load(tmp_path)
    assert loaded.config == CONFIG
    assert_same_bits(loaded.parameters, arrays)


@pytest.mark.parametrize("file", ["../a.safetensors", "/etc/passwd", "..\\a.safetensors", "C:\\a", "x/a"])
def test_a_weight_map_may_not_leave_the_folder(tmp_path: Path, file: str) -> None:
    saved_shards(tmp_path / "model")
    path = edit_index(tmp_path / "model", lambda index: index["weight_map"].update({"logits.bias": file}))
    assert any(mentions(problem, f"weight_map … {file!r} … folder") for problem in problems_of(path))


def test_all_problems_of_shards_at_once(tmp_path: Path) -> None:
    saved_shards(tmp_path / "model")
    shards = sorted((tmp_path / "model").glob("*.safetensors"))
    shards[0].write_bytes(shards[0].read_bytes()[:-1])
    shards[1].unlink()
    path = edit_index(tmp_path / "model", lambda index: index["weight_map"].update({"extra.bias": shards[2].name}) or
                      (index["weight_map"].pop("logits.bias") and index["metadata"].update(config="{}")))  # fmt: skip
    text = "\n".join(problems_of(path))
    assert f"{shards[0].name}" in text
    assert mentions(text, f"weight_map … '{shards[1].name}'")
    assert mentions(text, f"weight_map … extra.bias … {shards[2].name}")
    assert mentions(text, f"{shards[-1].name} … logits.bias … weight_map")
    assert "'config'" in text


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}', "[" * 100000])
def test_a_broken_index(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text)
    assert "index" in problems_of(path)[0]


def test_a_folder_without_one_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got neither"):
        canonical.load(tmp_path)
    for name in "ab":
        canonical.save(tmp_path / f"{name}.safetensors", CONFIG, random_parameters(CONFIG))
    with pytest.raises(ValueError, match=r"got a.safetensors, b.safetensors"):
        canonical.load(tmp_path)


def test_shards_need_a_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    old = saved_shards(folder)
    with pytest.raises(ValueError, match=r"model .*shards"):
        canonical.save(folder, CONFIG, random_parameters(CONFIG, seed=1), max_shard_bytes=9000)
    with pytest.raises(ValueError, match="model is a folder"):
        canonical.save(folder, CONFIG, old)
    assert_same_bits(canonical.load(folder).parameters, old)


# --- damaged files


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_tensor_is_named_and_nothing_else(tmp_path: Path, name: str) -> None:
    arrays, (change, message) = random_parameters(CONFIG), DAMAGES[name]
    change(arrays)
    found = problems_of(write_raw(tmp_path / "a.safetensors", arrays))
    assert any(mentions(problem, message) for problem in found), found
    assert len(found) == (2 if name == "misnamed" else 1), found


@pytest.mark.parametrize("rename", ["model.{}", "x.{}_"])
def test_a_file_under_other_names_is_named_in_seconds(tmp_path: Path, rename: str) -> None:
    """Hundreds of missing and unexpected names, without comparing the letters of all pairs; a common prefix is recognized."""
    config = CONFIG.replace(encoder_layers=12, decoder_layers=12)
    arrays = {rename.format(name): array for name, array in random_parameters(config).items()}
    path = write_raw(tmp_path / "a.safetensors", arrays, config)
    found = problems_of(path)
    assert len(found) == 2 * len(arrays)
    if rename == "model.{}":
        assert f"missing {QUERY} of shape (12, 3, 4) (nearest: model.{QUERY})" in found
        assert f"unexpected model.{QUERY} (nearest: {QUERY})" in found


def test_all_problems_at_once(tmp_path: Path) -> None:
    arrays = random_parameters(CONFIG)
    arrays["encoder.layers.0.feed_forward.hidden.kernel"] = arrays["encoder.layers.0.feed_forward.hidden.kernel"].T
    del arrays["decoder.final_norm.offset"]
    for name in ("extra", "misnamed", "nan"):
        DAMAGES[name][0](arrays)
    arrays["target_embedding.table"] = arrays["target_embedding.table"].astype(np.float64)
    path = write_raw(tmp_path / "a.safetensors", arrays, format_version="4", ties='{"logits.kernel": "target_embedding.table"}')
    text = "\n".join(problems_of(path))
    for message in (
        "format_version … '1'; got '4'", "ties … {}", "hidden.kernel is transposed",
        "missing decoder.final_norm.offset", "unexpected decoder.more", "nearest: " + QUERY, "logits.bias must be finite",
        "target_embedding.table … float32 … float64",
    ):  # fmt: skip
        assert mentions(text, message)


@pytest.mark.parametrize(
    "changes",
    [{"model_width": 16}, {"feed_forward_width": 21}, {"key_size": 5}, {"value_size": 5}, {"heads": 6}, {"heads": 6, "key_value_heads": 2},
     {"encoder_layers": 3}, {"encoder_layers": 1}, {"decoder_layers": 2}, {"encoder_layers": 10**9}, {"final_norm": False},
     {"attention_bias": False}, {"target_vocabulary": 32}, {"model_width": 16, "encoder_layers": 1, "attention_bias": False}],
    ids=str,
)  # fmt: skip
def test_a_config_that_contradicts_the_tensors_is_named_once(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = write_raw(tmp_path / "a.safetensors", random_parameters(CONFIG), CONFIG.replace(**changes))
    expected = [f"{name} … {value!r} … {getattr(CONFIG, name)!r}" for name, value in TransformerConfig.apart(changes).items()]
    assert each_mentions(problems_of(path), expected)


LACKING = json.dumps({name: value for name, value in CONFIG.to_dict().items() if name != "positions"})


def halved(arrays: dict[str, np.ndarray]) -> None:
    """Three heads are not a multiple of the remaining two key heads."""
    for name, array in arrays.items():
        if ".key." in name or ".value." in name:
            arrays[name] = array[:, :2] if name.endswith("kernel") else array[:2]


def transposed(arrays: dict[str, np.ndarray]) -> None:
    """Removes a row of one tensor, and transposes the other two with that vocabulary."""
    arrays["source_embedding.table"] = arrays["source_embedding.table"][:-1]
    for name in ("target_embedding.table", "logits.kernel"):
        arrays[name] = arrays[name].T


def lost(arrays: dict[str, np.ndarray]) -> None:
    for name in [name for name in arrays if name.startswith("encoder.layers.0.")]:
        del arrays[name]


@pytest.mark.parametrize(
    ("change", "claimed", "wanted"),
    [
        (halved, CONFIG, {"encoder.layers", "decoder.layers"}),
        (transposed, CONFIG, {"source_embedding.table must have shape", "target_embedding.table is", "logits.kernel is transposed"}),
        (lost, CONFIG, {"missing encoder.layers.0."}),
        (lambda _: None, TIED, {"the config ties logits.kernel to source_embedding.table", "unexpected logits.kernel"}),
        (
            lambda arrays: (arrays.clear(), arrays.update(w=np.zeros(3, np.float32))),
            CONFIG.replace(encoder_layers=10**9),
            {"encoder_layers … 1000000000 … 0", "unexpected w", "missing "},
        ),
    ],
    ids=["no config has such sizes", "tensors against each other", "a layer is lost", "no tie", "more layers than tensors"],
)
def test_problems_of_tensors_do_not_speak_against_the_config(
    tmp_path: Path, change: Callable[[dict[str, np.ndarray]], object], claimed: TransformerConfig, wanted: set[str]
) -> None:
    arrays = random_parameters(TIED.replace(tie_logits=False) if claimed is TIED else CONFIG)
    change(arrays)
    found = problems_of(write_raw(tmp_path / "a.safetensors", arrays, claimed))
    assert {start for problem in found for start in wanted if mentions(problem, start)} == wanted
    assert all(any(mentions(problem, start) for start in wanted) for problem in found)
    assert change is not halved or (len(found) == 16 and all("must have shape" in problem for problem in found))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"config": None}, "metadata … JSON"),
        ({"config": "[" * 100000}, "metadata … JSON"),
        ({"config": "{}"}, "source_vocabulary"),
        ({"config": LACKING}, "config … missing positions"),
        ({"config": json.dumps(CONFIG.to_dict() | {"heads": 0})}, "1; got 0"),
        ({"config": json.dumps(CONFIG.to_dict() | {"epsilon": float("nan")})}, "config: epsilon must be a finite number"),
        ({"config": json.dumps(CONFIG.to_dict() | {"head": 1})}, "config: unknown config field 'head' (nearest: heads)"),
        ({"format": "pt"}, "metadata … 'rosettaformer'; got 'pt'"),
        ({"format_version": "99"}, "format_version … '1'; got '99'"),
        ({"format_version": None}, "format_version … None"),
        ({"foreign": "[1]"}, "foreign … JSON"),
        ({"ties": None}, "{}"),
    ],
)
def test_wrong_metadata(tmp_path: Path, metadata: dict[str, str | None], message: str) -> None:
    found = problems_of(write_raw(tmp_path / "a.safetensors", random_parameters(CONFIG), **metadata))
    assert len(found) == 1 and mentions(found[0], message), found


def header(tensors: object, data: bytes = b"\0" * 8) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: tuple[int, ...] = (2,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [0, 8]}


# the safetensors package checks the header, and NumPy its dtypes and shapes
DAMAGED = {
    "empty": b"",
    "zip": b"PK\x03\x04" + b"x" * 100,
    "bogus header length": struct.pack("<Q", 2**63) + b"{}",
    "no JSON": struct.pack("<Q", 2) + b"{x",
    "deep": struct.pack("<Q", 50000) + b"[" * 50000,
    "no entry": header({"a": 1}),
    "overflowing size": header({"a": entry((2**40, 2**40))}),
    "too many axes": header({"a": entry((2,) + (1,) * 69)}),
    "overlapping": header({"a": entry(), "b": entry()}),
    "trailing data": header({"a": entry()}, b"\0" * 9),
    "dtype unknown to NumPy": header({"a": entry((8,), "F8_E5M2")}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_container_is_one_problem(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(DAMAGED[name])
    (problem,) = problems_of(path)
    assert "empty" in problem or "damaged" in problem


def test_a_missing_file_and_a_wrong_format() -> None:
    with pytest.raises(ValueError, match="does not exist"):
        canonical.load("no/such.safetensors")
    with pytest.raises(ValueError, match=r"format.*torch-transformer, hugging-face; got 'gguf'"):
        checkpoints.load("x", "gguf")
