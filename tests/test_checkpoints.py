"""Checkpoints: bit-exact round trips, real torch.nn.Transformer modules, and every way in which a file can be wrong."""

import json
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from reference_numpy import TransformerConfig, parameters, preset, transformer
from rosettaformer import checkpoints
from rosettaformer.checkpoints import CheckpointError, canonical, container, torch_transformer
from rosettaformer.commands.convert import convert
from rosettaformer.commands.inspect import inspect

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but"),  # nn.Transformer has no way to ask for less
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage"),
]

DTYPES = ("float64", "float32", "bfloat16", "float16")
SIZES = {
    "source_vocabulary": 37,
    "target_vocabulary": 31,
    "model_width": 12,
    "heads": 3,
    "key_value_heads": 3,
    "key_size": 4,
    "value_size": 4,
    "feed_forward_width": 20,
    "encoder_layers": 2,
    "decoder_layers": 1,
}
CONFIG = preset("semillero", **SIZES)
TIED = preset("sapiens", **SIZES | {"target_vocabulary": 37})
QUERY = "encoder.layers.1.self_attention.query.kernel"


def random_parameters(config: TransformerConfig, dtype: str = "float32", seed: int = 0) -> dict[str, np.ndarray]:
    """Every parameter random and of visible size, so that no two can be confused."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(getattr(ml_dtypes, dtype, dtype)) for name, shape in parameters.shapes(config).items()}


def assert_same_bits(left, right):
    assert list(left) == list(right)
    for name, array in left.items():
        assert array.dtype == right[name].dtype and array.shape == right[name].shape, name
        assert array.tobytes() == right[name].tobytes(), name


def write_raw(path: Path, tensors, claimed=CONFIG, **metadata) -> Path:
    """A file that claims to be canonical, whatever it holds."""
    fields = {"format": "rosettaformer", "format_version": "1", "config": json.dumps(claimed.to_dict())}
    fields |= {"ties": json.dumps(parameters.ties(claimed))} | metadata
    container.write(path, tensors, {name: text for name, text in fields.items() if text is not None})
    return path


def write_header(path: Path, header, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def problems_of(path: Path) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        canonical.load(path)
    assert str(path) in str(caught.value) and all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


# --- the canonical file


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "config", [CONFIG, TIED, preset("ict1022", **SIZES | {"target_vocabulary": 37, "decoder_layers": 0})], ids=["untied", "tied", "encoder"]
)
def test_canonical_round_trip_is_bit_exact(tmp_path, config, dtype):
    arrays = random_parameters(config, dtype)
    canonical.save(tmp_path / "a.safetensors", config, dict(reversed(arrays.items())))
    loaded = canonical.load(tmp_path / "a.safetensors")
    assert loaded.config == config
    assert_same_bits(loaded.parameters, arrays)


def test_special_bits_survive(tmp_path):
    arrays = random_parameters(CONFIG, "bfloat16")
    patterns = np.array([0x8000, 0x0001, 0x807F, 0x7F7F], np.uint16)  # -0, subnormals, the largest
    arrays[QUERY].reshape(-1)[:4] = patterns.view(ml_dtypes.bfloat16)
    canonical.save(tmp_path / "a.safetensors", CONFIG, arrays)
    assert_same_bits(canonical.load(tmp_path / "a.safetensors").parameters, arrays)


def test_other_readers_of_safetensors_agree(tmp_path):
    safetensors = pytest.importorskip("safetensors")
    arrays = random_parameters(TIED, "float16")
    canonical.save(tmp_path / "a.safetensors", TIED, arrays)
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        assert file.metadata()["format"] == "rosettaformer" and json.loads(file.metadata()["config"]) == TIED.to_dict()
        assert json.loads(file.metadata()["ties"]) == parameters.ties(TIED)
        assert set(file.keys()) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(file.get_tensor(name), array)


def test_files_of_other_writers_are_read(tmp_path):
    numpy_writer = pytest.importorskip("safetensors.numpy")
    arrays = random_parameters(CONFIG)
    metadata = {"format": "rosettaformer", "format_version": "1", "config": json.dumps(CONFIG.to_dict()), "ties": "{}"}
    numpy_writer.save_file(arrays, tmp_path / "a.safetensors", metadata)
    assert_same_bits(canonical.load(tmp_path / "a.safetensors").parameters, arrays)


@pytest.mark.parametrize("stride", ["transposed", "sliced", "reversed", "broadcast"])
def test_arrays_that_are_not_contiguous_keep_their_values(tmp_path, stride):
    """The safetensors package 0.8.0 writes the memory as it lies, which is another tensor."""
    arrays = random_parameters(CONFIG)
    shape = arrays[QUERY].shape
    values = np.random.default_rng(1).normal(size=[2 * size for size in shape]).astype(np.float32)
    view = {
        "transposed": values[tuple(slice(size) for size in shape)].copy().transpose(2, 1, 0).copy().transpose(2, 1, 0),
        "sliced": values[::2, ::2, ::2],
        "reversed": values[: shape[0], : shape[1], shape[2] - 1 :: -1],
        "broadcast": np.broadcast_to(values[0, 0, : shape[2]], shape),
    }[stride]
    assert not view.flags.c_contiguous
    canonical.save(tmp_path / "a.safetensors", CONFIG, arrays | {QUERY: view})
    np.testing.assert_array_equal(canonical.load(tmp_path / "a.safetensors").parameters[QUERY], view)


def test_equal_models_give_equal_files(tmp_path):
    arrays = random_parameters(CONFIG)
    canonical.save(tmp_path / "a", CONFIG, arrays)
    canonical.save(tmp_path / "b", CONFIG, dict(reversed(arrays.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_save_refuses_what_load_would(tmp_path):
    arrays = random_parameters(CONFIG)
    arrays["logits.bias"] = np.full_like(arrays["logits.bias"], np.nan)
    arrays[QUERY] = arrays[QUERY].astype(np.float64)
    arrays["logits.kernal"] = arrays.pop("logits.kernel")
    with pytest.raises(CheckpointError) as caught:
        canonical.save(tmp_path / "a.safetensors", CONFIG, arrays)
    text = str(caught.value)
    assert "logits.bias must be finite" in text and f"{QUERY} must be float32" in text and "nearest: logits.kernal" in text
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", ["os.fsync", "os.replace", "rosettaformer.checkpoints.container.write"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "a.safetensors"
    canonical.save(path, CONFIG, random_parameters(CONFIG))
    before = path.read_bytes()
    real_write = container.write

    def fail(*arguments, **options):
        if call.endswith("container.write"):
            real_write(*arguments, **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(call, fail)
    with pytest.raises(OSError, match="No space left"):
        canonical.save(path, CONFIG, random_parameters(CONFIG, seed=1))
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a.safetensors"]


def test_a_saved_file_has_the_users_permissions_and_links_stay(tmp_path):
    (tmp_path / "plain").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    canonical.save(tmp_path / "link", CONFIG, random_parameters(CONFIG))
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").stat().st_mode == (tmp_path / "plain").stat().st_mode


# --- shards


def saved_shards(folder: Path, config=CONFIG) -> dict[str, np.ndarray]:
    arrays = random_parameters(config)
    canonical.save(folder, config, arrays, max_shard_bytes=5000)
    return arrays


def edit_index(folder: Path, edit) -> Path:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    edit(index)
    path.write_text(json.dumps(index))
    return path


def test_shards_round_trip_by_folder_and_by_index(tmp_path):
    arrays = saved_shards(tmp_path / "model", TIED)
    shards = sorted((tmp_path / "model").glob("*.safetensors"))
    assert len(shards) > 3 and all(path.stat().st_size < 5000 + 20000 for path in shards)
    for path in (tmp_path / "model", tmp_path / "model" / "model.safetensors.index.json"):
        loaded = canonical.load(path)
        assert loaded.config == TIED
        assert_same_bits(loaded.parameters, arrays)


@pytest.mark.parametrize("where", ["index", "index as object", "shard", "config.json"])
def test_the_config_of_shards_may_stand_in_three_places(tmp_path, where):
    arrays = random_parameters(CONFIG)
    names = list(arrays)
    metadata = canonical._metadata(CONFIG)
    for number, part in enumerate((names[::2], names[1::2])):
        own = metadata if (where, number) in (("shard", 1), ("index as object", 0)) else {"format": "pt"} if where == "config.json" else {}
        container.write(tmp_path / f"{number}.safetensors", {name: arrays[name] for name in part}, own)
    index: dict[str, Any] = {
        "metadata": {"total_size": 1},
        "weight_map": {name: f"{number % 2}.safetensors" for number, name in enumerate(names)},
    }
    if where == "config.json":
        (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_dict()))
    if where.startswith("index"):
        index["metadata"] |= metadata if where == "index" else metadata | {"config": dict(reversed(CONFIG.to_dict().items())), "ties": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    loaded = canonical.load(tmp_path)
    assert loaded.config == CONFIG
    assert_same_bits(loaded.parameters, arrays)


@pytest.mark.parametrize("file", ["../a.safetensors", "/etc/passwd", "..\\a.safetensors", "C:\\a", "x/../../a"])
def test_a_weight_map_may_not_leave_the_folder(tmp_path, file):
    saved_shards(tmp_path / "model")
    path = edit_index(tmp_path / "model", lambda index: index["weight_map"].update({"logits.bias": file}))
    assert any(problem.startswith(f"weight_map names {file!r}, which leaves") for problem in problems_of(path))


def test_all_problems_of_shards_at_once(tmp_path):
    saved_shards(tmp_path / "model")
    shards = sorted((tmp_path / "model").glob("*.safetensors"))
    shards[0].write_bytes(shards[0].read_bytes()[:-1])
    shards[1].unlink()
    path = edit_index(tmp_path / "model", lambda index: index["weight_map"].update({"extra.bias": shards[2].name}) or
                      (index["weight_map"].pop("logits.bias") and index["metadata"].update(config="{}")))  # fmt: skip
    text = "\n".join(problems_of(path))
    assert f"{shards[0].name}: is truncated at byte" in text
    assert f"weight_map names '{shards[1].name}', which does not exist" in text
    assert f"weight_map puts extra.bias into {shards[2].name}, which does not hold it" in text
    assert f"{shards[-1].name} holds logits.bias, which weight_map does not put there" in text
    assert "contradicts the other files in its metadata 'config'" in text


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}', "[" * 100000])
def test_a_broken_index(tmp_path, text):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text)
    assert "index of shards" in problems_of(path)[0]


def test_a_folder_without_one_checkpoint(tmp_path):
    with pytest.raises(ValueError, match=r"must hold one .*; got neither"):
        canonical.load(tmp_path)
    for name in "ab":
        canonical.save(tmp_path / f"{name}.safetensors", CONFIG, random_parameters(CONFIG))
    with pytest.raises(ValueError, match=r"got a.safetensors, b.safetensors"):
        canonical.load(tmp_path)


def test_shards_replace_only_shards_and_survive_a_failure(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    old = saved_shards(folder)
    real_replace = os.replace
    calls = []

    def fail_second(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError("interrupted")
        real_replace(*arguments)

    monkeypatch.setattr(os, "replace", fail_second)
    with pytest.raises(OSError, match="interrupted"):
        canonical.save(folder, CONFIG, random_parameters(CONFIG, seed=1), max_shard_bytes=9000)
    monkeypatch.undo()
    assert_same_bits(canonical.load(folder).parameters, old)
    assert os.listdir(tmp_path) == ["model"]
    canonical.save(folder, TIED, random_parameters(TIED), max_shard_bytes=9000)
    assert canonical.load(folder).config == TIED and os.listdir(tmp_path) == ["model"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds more than a sharded checkpoint"):
        canonical.save(folder, CONFIG, old, max_shard_bytes=9000)
    with pytest.raises(ValueError, match="is a folder"):
        canonical.save(folder, CONFIG, old)
    assert canonical.load(folder).config == TIED


# --- damaged files


def damaged(name: str):
    """A change of the tensors, and what must be said of it."""
    bias = "logits.bias"
    return {
        "missing": (lambda t: t.pop(QUERY), f"missing {QUERY} of shape (12, 3, 4)"),
        "extra": (lambda t: t.update({"decoder.more": np.zeros(3, np.float32)}), "unexpected decoder.more"),
        "misnamed": (
            lambda t: t.update({QUERY.replace("kernel", "kernal"): t.pop(QUERY)}),
            f"missing {QUERY} of shape (12, 3, 4) (nearest: {QUERY.replace('kernel', 'kernal')})",
        ),
        "transposed": (
            lambda t: t.update({QUERY: t[QUERY].T}),
            f"{QUERY} is transposed: has axes reversed, shape (4, 3, 12); must have shape (12, 3, 4)",
        ),
        "transposed table": (
            lambda t: t.update({"source_embedding.table": t["source_embedding.table"].T}),
            "source_embedding.table is transposed: has axes reversed, shape (12, 37); must have shape (37, 12)",
        ),
        "permuted": (lambda t: t.update({QUERY: t[QUERY].transpose(1, 0, 2)}), f"{QUERY} has its axes in another order, shape (3, 12, 4)"),
        "shape": (lambda t: t.update({QUERY: t[QUERY].reshape(12, 12)}), f"{QUERY} must have shape (12, 3, 4); got (12, 12)"),
        "mixed dtype": (
            lambda t: t.update({QUERY: t[QUERY].astype(np.float16)}),
            f"{QUERY} must be float32 like most tensors; got float16",
        ),
        "wrong dtype": (
            lambda t: t.update({QUERY: t[QUERY].astype(np.int32)}),
            f"{QUERY} must be one of float64, float32, bfloat16, float16; got int32",
        ),
        "nan": (lambda t: t[bias].__setitem__(slice(2), np.nan), f"{bias} must be finite; got 2 NaN and 0 infinite of 31 values"),
        "infinite": (lambda t: t[bias].__setitem__(0, -np.inf), f"{bias} must be finite; got 0 NaN and 1 infinite of 31 values"),
    }[name]


DAMAGES = (
    "missing",
    "extra",
    "misnamed",
    "transposed",
    "transposed table",
    "permuted",
    "shape",
    "mixed dtype",
    "wrong dtype",
    "nan",
    "infinite",
)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_tensor_is_named_and_nothing_else(tmp_path, name):
    arrays = random_parameters(CONFIG)
    damage, message = damaged(name)
    damage(arrays)
    found = problems_of(write_raw(tmp_path / "a.safetensors", arrays))
    assert any(problem.startswith(message) for problem in found), found
    assert len(found) == (2 if name == "misnamed" else 1), found


def test_a_file_under_other_names_is_named_in_seconds(tmp_path):
    """Every name of a model with a prefix: each finds its own, without comparing a hundred thousand pairs letter by letter."""
    config = CONFIG.replace(encoder_layers=12, decoder_layers=12)
    arrays = {f"model.{name}": array for name, array in random_parameters(config).items()}
    start = time.perf_counter()
    found = problems_of(write_raw(tmp_path / "a.safetensors", arrays, config))
    assert time.perf_counter() - start < 5
    assert f"missing {QUERY} of shape (12, 3, 4) (nearest: model.{QUERY})" in found
    assert f"unexpected model.{QUERY} (nearest: {QUERY})" in found


def test_all_problems_at_once(tmp_path):
    arrays = random_parameters(CONFIG)
    arrays["encoder.layers.0.feed_forward.hidden.kernel"] = arrays["encoder.layers.0.feed_forward.hidden.kernel"].T
    del arrays["decoder.final_norm.offset"]
    for name in ("extra", "misnamed", "nan"):
        damaged(name)[0](arrays)
    arrays["target_embedding.table"] = arrays["target_embedding.table"].astype(np.float64)
    path = write_raw(tmp_path / "a.safetensors", arrays, format_version="2", ties='{"logits.kernel": "target_embedding.table"}')
    text = "\n".join(problems_of(path))
    for message in (
        "format version must be '1'; got '2'", "ties contradict the config, which declares {}", "hidden.kernel is transposed",
        "missing decoder.final_norm.offset", "unexpected decoder.more", "nearest: " + QUERY, "logits.bias must be finite",
        "target_embedding.table must be float32 like most tensors; got float64",
    ):  # fmt: skip
        assert message in text


@pytest.mark.parametrize(
    "changes",
    [{"model_width": 16}, {"feed_forward_width": 21}, {"key_size": 5}, {"value_size": 5}, {"heads": 6}, {"heads": 6, "key_value_heads": 2},
     {"encoder_layers": 3}, {"encoder_layers": 1}, {"decoder_layers": 2}, {"encoder_layers": 10**9}, {"final_norm": False},
     {"attention_bias": False}, {"target_vocabulary": 32}, {"model_width": 16, "encoder_layers": 1, "attention_bias": False}],
    ids=str,
)  # fmt: skip
def test_a_config_that_contradicts_the_tensors_is_named_once(tmp_path, changes):
    path = write_raw(tmp_path / "a.safetensors", random_parameters(CONFIG), CONFIG.replace(**changes))
    expected = {
        f"config contradicts the tensors: {name} is {value!r}, but the tensors have {getattr(CONFIG, name)!r}"
        for name, value in changes.items()
    }
    assert set(problems_of(path)) == expected


def test_tensors_that_are_wrong_themselves_do_not_speak_against_the_config(tmp_path):
    arrays = random_parameters(CONFIG)
    arrays["source_embedding.table"] = arrays["source_embedding.table"][:-1]  # alone with its vocabulary
    for name in ("target_embedding.table", "logits.kernel"):  # two of the three with theirs
        arrays[name] = arrays[name].T
    assert [problem.split(",")[0] for problem in problems_of(write_raw(tmp_path / "a.safetensors", arrays))] == [
        "source_embedding.table must have shape (37",
        "target_embedding.table is transposed: has axes reversed",
        "logits.kernel is transposed: has axes reversed",
    ]


def test_a_tie_that_the_file_does_not_keep(tmp_path):
    path = write_raw(tmp_path / "a.safetensors", random_parameters(TIED.replace(tie_logits=False)), TIED)
    assert problems_of(path) == ["unexpected logits.kernel: the config ties it to source_embedding.table"]


def test_square_kernels_in_another_order_have_no_telling_shape_but_a_name(tmp_path):
    """What shapes cannot tell the names must: a kernel under another's name is missing at its own."""
    arrays = random_parameters(CONFIG)
    arrays["encoder.layers.1.self_attention.key.kernal"] = arrays.pop(QUERY)
    assert len(problems_of(write_raw(tmp_path / "a.safetensors", arrays))) == 2


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"config": None}, "metadata must hold the config"),
        ({"config": "no JSON"}, "the config must be a JSON object"),
        ({"config": "[" * 100000}, "the config must be a JSON object"),
        ({"config": "{}"}, "config: a config needs every field; missing source_vocabulary"),
        ({"config": json.dumps(CONFIG.to_dict() | {"heads": 0})}, "config: heads must be at least 1; got 0"),
        ({"config": json.dumps(CONFIG.to_dict() | {"epsilon": float("nan")})}, "config: epsilon must be a finite number"),
        ({"config": json.dumps(CONFIG.to_dict() | {"head": 1})}, "config: unknown config field 'head', did you mean 'heads'?"),
        ({"format": "pt"}, "metadata must name the format 'rosettaformer'; got 'pt'"),
        ({"format_version": "99"}, "the format version must be '1'; got '99'"),
        ({"format_version": None}, "the format version must be '1'; got None"),
        ({"ties": None}, "metadata must hold the ties"),
        ({"ties": "no JSON"}, "ties contradict the config, which declares {}; got null"),
    ],
)
def test_wrong_metadata(tmp_path, metadata, message):
    found = problems_of(write_raw(tmp_path / "a.safetensors", random_parameters(CONFIG), **metadata))
    assert len(found) == 1 and found[0].startswith(message), found


def entry(shape=(2,), dtype="F32", offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"abc", "is not a safetensors file, or truncated: it has only 3 bytes"),
        (b"PK\x03\x04" + b"x" * 100, "is not a safetensors file, or truncated: its header would have"),
        (struct.pack("<Q", 2**63) + b"{}", "is not a safetensors file, or truncated: its header would have 9223372036854775808 bytes"),
        (struct.pack("<Q", 500) + b"{", "is not a safetensors file, or truncated: its header would have 500 bytes, but 1 follow"),
        (struct.pack("<Q", 2) + b"{x", "is not a safetensors file: its header is not JSON"),
        (struct.pack("<Q", 2) + b"\xff\xfe", "is not a safetensors file: its header is not JSON"),
        (struct.pack("<Q", 2) + b"[]", "is not a safetensors file: its header is not a JSON object"),
        (struct.pack("<Q", 50000) + b"[" * 50000, "is not a safetensors file: its header is not JSON: it is nested too deeply"),
    ],
    ids=["empty", "short", "zip", "huge header", "cut header", "no JSON", "no UTF-8", "list", "deep"],
)
def test_no_safetensors_file(tmp_path, content, message):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    (problem,) = problems_of(path)
    assert problem.startswith(message)


def test_a_huge_header_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 2**40))
        file.truncate(2**40 + 8)  # a sparse file: reading it would take a terabyte
    assert problems_of(path) == ["is not a safetensors file: its header would have 1099511627776 bytes; the limit is 100000000"]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": 1}, "a must declare dtype, shape and data_offsets"),
        ({"a": entry() | {"more": 1}}, "a must declare dtype, shape and data_offsets"),
        ({"a": entry(dtype=3)}, "a must name its dtype; got 3"),
        ({"a": entry(shape=(-2,))}, "a must have a shape"),
        ({"a": entry(shape=(True, 2))}, "a must have a shape"),
        ({"a": entry(shape=(1,) * 40)}, "a must have a shape of at most 32 sizes"),
        ({"a": entry(shape=(2**40, 2**40))}, "a of float32 and shape (1099511627776, 1099511627776) does not fill its 8 bytes"),
        (
            {"a": entry(shape=(2**40,), offsets=(0, 2**42))},
            "is truncated at byte 105 of 4398046511197: 1 tensors are not whole, the first a",
        ),
        ({"a": entry(offsets=(8, 0))}, "a must have a first and a last byte"),
        ({"a": entry(), "b": entry()}, "b must begin at byte 8 of the data"),
        ({"a": entry(offsets=(4, 12))}, "a must begin at byte 0 of the data"),
        ({"a": entry(shape=(1,), offsets=(0, 4))}, "8 bytes follow the last tensor"),
        ({"__metadata__": {"format": 1}, "a": entry(offsets=(0, 8))}, "metadata must map names to text"),
        ({"\x1b[31mred": entry()}, "the tensor name '\\x1b[31mred' must be printable"),
        (b'{"a": {}, "a": {}}', "is not a safetensors file: its header is not JSON: 'a' appears twice"),
    ],
)
def test_a_header_that_lies(tmp_path, header, message):
    path = write_header(tmp_path / "a.safetensors", header, b"\0" * 12)
    assert any(problem.startswith(message) for problem in problems_of(path)), problems_of(path)


def test_every_truncation_of_a_file_is_a_clean_error(tmp_path):
    """Cut anywhere, the file is refused with a list of problems, never with another exception."""
    path = write_raw(tmp_path / "a.safetensors", random_parameters(CONFIG))
    content = path.read_bytes()
    for length in range(0, len(content), max(1, len(content) // 97)):
        path.write_bytes(content[:length])
        assert problems_of(path)


def test_no_random_damage_gives_another_exception(tmp_path):
    path = write_raw(tmp_path / "a.safetensors", random_parameters(CONFIG))
    content = path.read_bytes()
    rng = np.random.default_rng(3)
    header_end = 8 + int.from_bytes(content[:8], "little")
    for _ in range(300):
        changed = bytearray(content)
        for position in rng.integers(0, header_end, 3):
            changed[position] = rng.integers(256)
        path.write_bytes(changed)
        try:
            canonical.load(path)
        except ValueError as error:
            assert str(path) in str(error)


def test_a_missing_file_and_a_wrong_format():
    with pytest.raises(ValueError, match="does not exist"):
        canonical.load("no/such.safetensors")
    with pytest.raises(ValueError, match="format must be one of canonical, torch-transformer; got 'gguf'"):
        checkpoints.load("x", "gguf")


# --- torch.nn.Transformer

CHOICES = {
    "activation": "relu",
    "norm_placement": "post",
    "epsilon": 1e-5,
    "scale_embedding": True,
    "share_embeddings": False,
    "tie_logits": False,
    "padding_id": 0,
    "dropout_rate": 0.1,
    "attention_dropout_rate": 0.1,
    "hidden_dropout_rate": 0.1,
    "heads": 3,
}
NAMES: dict[str, Any] = {"source_embedding": "source", "target_embedding": "target.weight", "logits": "generator"}


def torch_model(width=12, heads=3, layers=(2, 1), hidden=20, vocabularies=(37, 31), tie=False, seed=0, **options):
    """A user's model: embeddings, positions as a buffer, nn.Transformer, an output layer; every parameter random and visible."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(seed)
    model = nn.Module()
    model.source, model.target = nn.Embedding(vocabularies[0], width), nn.Embedding(vocabularies[1], width)
    model.transformer = nn.Transformer(width, heads, *layers, hidden, batch_first=True, **options)
    model.generator = nn.Linear(width, vocabularies[1])
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    if tie:
        model.target = model.source
        model.generator.weight = model.source.weight
    model.register_buffer("pe", torch.zeros(1, 50, width))
    return model.eval()


def state_of(model) -> dict[str, np.ndarray]:
    torch = pytest.importorskip("torch")
    return {
        name: tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
        for name, tensor in model.state_dict().items()
    }


def to_torch(state):
    torch = pytest.importorskip("torch")
    return {
        name: torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16) if array.dtype == ml_dtypes.bfloat16 else torch.from_numpy(array)
        for name, array in state.items()
    }


def torch_logits(model, source, target, activation_padding=0):
    """The module's own output: its embedding times sqrt(d), sinusoidal positions, padding and causal masks."""
    torch = pytest.importorskip("torch")
    source, target = torch.from_numpy(source), torch.from_numpy(target)
    width = model.source.embedding_dim
    position = torch.arange(50, dtype=torch.float64)[:, None]
    angle = position / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    table = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)

    def embed(module, token):
        return module(token) * width**0.5 + table[: token.shape[1]]

    with torch.no_grad():
        x = model.transformer(
            embed(model.source, source), embed(model.target, target),
            tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.float64).bool(),
            src_key_padding_mask=source == 0, tgt_key_padding_mask=target == 0, memory_key_padding_mask=source == 0,
        )  # fmt: skip
        return model.generator(x).numpy()


def tokens(vocabularies=(37, 31), seed=0):
    """Ragged right padding; no padding inside."""
    rng = np.random.default_rng(seed)
    source, target = rng.integers(1, vocabularies[0], (3, 11)), rng.integers(1, vocabularies[1], (3, 7))
    source[1, 6:], source[2, 9:], target[0, 5:] = 0, 0, 0
    return source, target


def assert_same_logits(model, config, arrays):
    source, target = tokens((config.source_vocabulary, config.target_vocabulary))
    ours = transformer.transformer(parameters.nest(arrays), config, source, target)
    theirs = torch_logits(model, source, target)
    real = target != 0
    assert np.abs(theirs[real]).max() > 0.1
    assert np.abs(ours - theirs)[real].max() <= 1e-11 * np.abs(theirs[real]).max()


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_imported_parameters_give_the_modules_own_logits(norm_first, activation):
    model = torch_model(96, 4, (3, 2), 160, norm_first=norm_first, activation=activation, layer_norm_eps=1e-6).double()
    choices = {"heads": 4, "epsilon": 1e-6, "norm_placement": "pre" if norm_first else "post"}
    choices["activation"] = "relu" if activation == "relu" else "gelu_erf"
    checkpoint = torch_transformer.import_state_dict(state_of(model), settings=CHOICES | choices, ignore=["pe"], **NAMES)
    config = checkpoint.config
    assert (config.encoder_layers, config.decoder_layers, config.model_width, config.feed_forward_width) == (3, 2, 96, 160)
    assert (config.final_norm, config.attention_bias, config.output_bias, config.key_size) == (True, True, True, 24)
    assert_same_logits(model, config, checkpoint.parameters)


def test_the_base_model(tmp_path):
    """Real size, through files: saved by torch, converted by the command, equal logits."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Module()
    model.source, model.target = torch.nn.Embedding(1000, 512), torch.nn.Embedding(1000, 512)
    model.transformer = torch.nn.Transformer(batch_first=True).eval()
    model.generator = torch.nn.Linear(512, 1000)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    run(convert, tmp_path / "model.pt", tmp_path / "a.safetensors", *TORCH, "--preset", "semillero", *FLAGS)
    checkpoint = canonical.load(tmp_path / "a.safetensors")
    assert checkpoint.config.heads == 8 and checkpoint.config.source_vocabulary == 1000
    assert_same_logits(model.double(), checkpoint.config, {name: array.astype(np.float64) for name, array in checkpoint.parameters.items()})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tie", [False, True])
def test_torch_round_trip_is_bit_exact_and_loads_strictly(dtype, tie):
    torch = pytest.importorskip("torch")
    model = torch_model(vocabularies=(37, 37), tie=tie).to(getattr(torch, dtype))
    state = state_of(model)
    settings = CHOICES | {"share_embeddings": tie, "tie_logits": tie}
    checkpoint = torch_transformer.import_state_dict(state, settings=settings, ignore=["pe"], **NAMES)
    exported = torch_transformer.export_state_dict(checkpoint.config, checkpoint.parameters, **NAMES)
    del state["pe"]
    assert_same_bits(dict(sorted(exported.items())), dict(sorted(state.items())))
    fresh = torch_model(vocabularies=(37, 37), tie=tie, seed=1).to(getattr(torch, dtype))
    fresh.load_state_dict(to_torch(exported) | {"pe": fresh.pe}, strict=True)
    inner = torch_transformer.export_state_dict(checkpoint.config, checkpoint.parameters, prefix="")
    fresh.transformer.load_state_dict(to_torch({key: array for key, array in inner.items() if key.startswith(("enc", "dec"))}), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(fresh.parameters(), model.parameters(), strict=True))
    again = torch_transformer.import_state_dict(exported, settings=settings, **NAMES)
    assert again.config == checkpoint.config
    assert_same_bits(again.parameters, checkpoint.parameters)


def test_the_packed_projection_is_query_key_value_and_outputs_come_first():
    state = state_of(torch_model())
    arrays = torch_transformer.import_state_dict(state, settings=CHOICES, ignore=["pe"], **NAMES).parameters
    packed = state["transformer.decoder.layers.0.multihead_attn.in_proj_weight"]
    value = arrays["decoder.layers.0.cross_attention.value.kernel"]
    assert value[5, 2, 1] == packed[2 * 12 + 2 * 4 + 1, 5]
    assert (
        arrays["decoder.layers.0.cross_attention.key.bias"][1, 3]
        == state["transformer.decoder.layers.0.multihead_attn.in_proj_bias"][12 + 4 + 3]
    )
    output = arrays["encoder.layers.1.self_attention.output.kernel"]
    assert output[2, 3, 7] == state["transformer.encoder.layers.1.self_attn.out_proj.weight"][7, 2 * 4 + 3]


def imported(state, settings=CHOICES, ignore=("pe",), **options):
    return torch_transformer.import_state_dict(state, settings=settings, ignore=ignore, **(NAMES | options))


def import_problems(state, *arguments, **options) -> str:
    with pytest.raises(CheckpointError) as caught:
        imported(state, *arguments, **options)
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize("prefix", ["", "transformer.", "module.model.transformer."])
def test_the_prefix_is_found(prefix):
    state = state_of(torch_model())
    moved = {key.replace("transformer.", prefix, 1) if key.startswith("transformer.") else key: array for key, array in state.items()}
    expected = imported(state)
    for options in ({}, {"prefix": prefix}):
        found = imported(moved, **options)
        assert found.config == expected.config
        assert_same_bits(found.parameters, expected.parameters)
    assert f"holds no torch.nn.Transformer at the prefix '{prefix}x.'" in import_problems(moved, prefix=f"{prefix}x.")


def test_two_transformers_need_a_prefix():
    state = state_of(torch_model())
    twin = {key.replace("transformer.", "other."): array for key, array in state.items() if key.startswith("transformer.")}
    assert "holds several torch.nn.Transformer: choose with --prefix one of 'other.', 'transformer.'" in import_problems(state | twin)
    assert imported(state | twin, prefix="transformer.", ignore=["pe", *twin]).config.encoder_layers == 2


@pytest.mark.parametrize("name", ["missing", "extra", "transposed", "shape", "dtype", "nan", "tied"])
def test_a_damaged_state_dict(name):
    state = {key: array.copy() for key, array in state_of(torch_model(vocabularies=(37, 37), tie=name == "tied")).items()}
    key = "transformer.encoder.layers.1.linear2.weight"
    settings = CHOICES
    if name == "missing":
        del state[key]
        message = f"missing {key} of shape (12, 20)"
    elif name == "extra":
        state["adapter.weight"] = np.zeros(3, np.float32)
        message = "unexpected adapter.weight: it belongs to no nn.Transformer; name it, or --ignore it"
    elif name == "transposed":
        state[key] = state[key].T
        message = f"{key} is transposed: has axes reversed, shape (20, 12); must have shape (12, 20)"
    elif name == "shape":
        key = "transformer.encoder.layers.0.self_attn.in_proj_weight"
        state[key] = state[key][:-1]
        message = f"{key} must have shape (36, 12); got (35, 12)"
    elif name == "dtype":
        state[key] = state[key].astype(np.float64)
        message = f"{key} must be float32 like most tensors; got float64"
    elif name == "nan":
        state[key][0, 0] = np.nan
        message = f"{key} must be finite; got 1 NaN"
    else:
        state["generator.weight"][3, 3] += 1
        settings = CHOICES | {"share_embeddings": True, "tie_logits": True}
        message = "generator.weight must equal source.weight, to which the config ties it"
    text = import_problems(state, settings)
    assert text.startswith(message) and "\n" not in text, text


def test_what_the_shapes_cannot_tell_must_be_told():
    state = state_of(torch_model())
    text = import_problems(state, {})
    assert "the shapes cannot tell heads, activation, norm_placement, epsilon, scale_embedding" in text
    assert "dropout_rate" in text and "feed_forward_width" not in text
    # the preset's eight heads are those of width 512: at width 12 they would be a guess
    text = import_problems(state, {}, preset="semillero")
    assert "the shapes cannot tell heads:" in text and "\n" not in text
    assert imported(state, {"heads": 3}, preset="semillero").config == CONFIG


def test_contradictions_are_listed_at_once():
    state = state_of(torch_model())
    settings = {"heads": 3, "model_width": 16, "encoder_layers": 5, "key_size": 7, "output_bias": False}
    text = import_problems(state, settings, preset="paper_base")
    for message in (
        "model_width is 16 by --set, but the tensors show 12",
        "encoder_layers is 5 by --set, but the tensors show 2",
        "output_bias is False by --set, but the tensors show True",
        "final_norm is False by the preset paper_base, but the tensors show True",
        "attention_bias is False by the preset paper_base, but the tensors show True",
        "key_size is 7, but torch.nn.Transformer with 3 heads has 4",
    ):
        assert message in text
    assert "heads must divide model_width; got heads=5, model_width=12" in import_problems(state, CHOICES | {"heads": 5})
    assert "heads must be an integer of at least 1; got 0" in import_problems(state, CHOICES | {"heads": 0})
    assert "activation must be one of" in import_problems(state, CHOICES | {"activation": "swish"})
    text = import_problems(state, CHOICES | {"share_embeddings": True})
    assert "shared embeddings need equal vocabularies" in text


def test_layouts_that_cannot_be_expressed():
    state = state_of(torch_model(bias=False))
    assert "without biases (bias=False) cannot be expressed" in import_problems(state)
    state = state_of(torch_model())
    assert "missing transformer.decoder.norm.weight" in import_problems(
        {key: array for key, array in state.items() if not key.startswith("transformer.decoder.norm")}
    )
    no_norms = {key: array for key, array in state.items() if "coder.norm" not in key}
    assert imported(no_norms).config.final_norm is False
    grouped = preset("paper_base", **SIZES | {"key_value_heads": 1, "key_size": 5, "target_vocabulary": 37})
    with pytest.raises(CheckpointError) as caught:
        torch_transformer.export_state_dict(grouped, random_parameters(grouped))
    assert [problem.partition(";")[0] for problem in caught.value.problems] == [
        "torch.nn.Transformer needs key_value_heads=3",
        "torch.nn.Transformer needs key_size=4",
        "torch.nn.Transformer needs attention_bias=1",
    ]
    with pytest.raises(ValueError, match=r"cannot both be named same\.weight"):
        torch_transformer.export_state_dict(CONFIG, random_parameters(CONFIG), source_embedding="same", target_embedding="same")


def test_names_around_the_transformer():
    state = state_of(torch_model())
    text = import_problems(state, source_embedding="sauce", ignore=["pe", "pes"])
    assert "--source-embedding sauce: no such tensor" in text and "--ignore pes: no such tensor (nearest: pe)" in text
    assert "unexpected pe: it belongs to no nn.Transformer" in import_problems(state, ignore=())
    text = import_problems(state, source_embedding=None)
    assert "no source embedding: name it with --source-embedding (tensors outside of the nn.Transformer: source.weight)" in text
    text = import_problems(state, logits=None)
    assert "missing logits.weight (name it with --logits) of shape (31, 12)" in text and "unexpected generator.weight" in text
    text = import_problems(state, target_embedding="source")
    assert "one table is named for source and target, but share_embeddings is False" in text
    tied = state_of(torch_model(vocabularies=(37, 37), tie=True))
    settings = CHOICES | {"share_embeddings": True, "tie_logits": True}
    once = {key: array for key, array in tied.items() if key not in ("target.weight", "generator.weight", "generator.bias")}
    found = imported(once, settings, target_embedding=None, logits=None)
    assert found.config.output_bias is False and set(found.parameters) == set(parameters.axes(found.config))


def test_a_transformer_alone():
    state = {key: array for key, array in state_of(torch_model()).items() if key.startswith("transformer.")}
    nameless = dict.fromkeys(NAMES)
    assert "--fresh-embeddings SEED" in import_problems(state, ignore=(), **nameless)
    assert "the shapes cannot tell source_vocabulary, target_vocabulary, output_bias" in import_problems(
        state, ignore=(), fresh_embeddings=4, **nameless
    )
    settings = CHOICES | {"source_vocabulary": 37, "target_vocabulary": 31, "output_bias": True}
    found = imported(state, settings, ignore=(), fresh_embeddings=4, **nameless)
    fresh = parameters.initialise(found.config, 4, np.float32)
    for name in ("source_embedding.table", "target_embedding.table", "logits.kernel", "logits.bias"):
        np.testing.assert_array_equal(found.parameters[name], fresh[name])
    assert found.parameters[QUERY].dtype == np.float32 and not np.array_equal(found.parameters[QUERY], fresh[QUERY])


def test_an_encoder_alone():
    torch = pytest.importorskip("torch")
    model = torch.nn.Module()
    model.source = torch.nn.Embedding(37, 12)
    model.encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(12, 3, 20, batch_first=True), 2, enable_nested_tensor=False
    )
    found = imported(state_of(model), ignore=(), target_embedding=None, logits=None, settings=CHOICES | {"output_bias": False})
    assert found.config.decoder_layers == 0 and found.config.final_norm is False and found.config.encoder_layers == 2


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_dict_files(tmp_path, suffix, dtype):
    pytest.importorskip("torch")
    arrays = random_parameters(TIED, dtype)
    path = tmp_path / f"state{suffix}"
    checkpoints.save(path, TIED, arrays, "torch-transformer", **NAMES)
    loaded = checkpoints.load(
        path, "torch-transformer", preset="sapiens", settings={"heads": 3}, **NAMES | {"logits": None}, ignore=["generator.weight"]
    )
    assert loaded.config == TIED and os.listdir(tmp_path) == [path.name]
    assert_same_bits(loaded.parameters, arrays)


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil",))


@pytest.mark.parametrize("content", ["code", "garbage", "empty", "list", "nested"])
def test_a_bad_pickle_runs_nothing_and_is_a_clean_error(tmp_path, monkeypatch, content):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.pt"
    if content in ("garbage", "empty"):
        path.write_bytes(b"garbage" * 9 if content == "garbage" else b"")
    else:
        state = {key: torch.from_numpy(array) for key, array in state_of(torch_model()).items()}
        torch.save({"code": {"a": Evil()}, "list": [1, 2], "nested": {"epoch": 1, "model": state}}[content], path)
    with pytest.raises(CheckpointError) as caught:
        torch_transformer.load(path)
    wanted = {"list": "must hold a state dict, names to tensors; got list", "nested": "got 'model': a "}
    assert wanted.get(content, "cannot be read as tensors alone (weights_only=True)") in str(caught.value)
    assert not (tmp_path / "evil").exists()


def test_a_missing_torch_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "a.pt").touch()
    with pytest.raises(ValueError, match=r"files need PyTorch: pip install 'rosettaformer\[torch\]'"):
        torch_transformer.load(tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"files need PyTorch"):
        torch_transformer.save(tmp_path / "b.pt", CONFIG, random_parameters(CONFIG))
    assert os.listdir(tmp_path) == ["a.pt"]
    path = tmp_path / "a.safetensors"
    torch_transformer.save(path, CONFIG, random_parameters(CONFIG))
    assert torch_transformer.load(path, preset="semillero", settings={"heads": 3}).config == CONFIG


# --- commands

TORCH = ("--from", "torch-transformer", "--to", "canonical")
FLAGS = ("--source-embedding", "source", "--target-embedding", "target", "--logits", "generator")


def run(command, *arguments):
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_convert_there_and_back(tmp_path):
    original = random_parameters(CONFIG)
    checkpoints.save(tmp_path / "state.safetensors", CONFIG, original, "torch-transformer", **NAMES)
    output = run(
        convert, tmp_path / "state.safetensors", tmp_path / "a.safetensors", *TORCH, *FLAGS, "--preset", "semillero", "--set", "heads=3"
    )
    assert f"{parameters.count(CONFIG):,} parameters" in output and "float32" in output
    loaded = canonical.load(tmp_path / "a.safetensors")
    assert loaded.config == CONFIG
    assert_same_bits(loaded.parameters, original)
    back = (tmp_path / "a.safetensors", tmp_path / "back.safetensors", "--from", "canonical", "--to", "torch-transformer")
    run(convert, *back, *FLAGS, "--prefix", "model.")
    assert set(container.read(tmp_path / "back.safetensors").tensors) == {
        key.replace("transformer.", "model.") for key in container.read(tmp_path / "state.safetensors").tensors
    }


def test_convert_options_of_the_config(tmp_path):
    checkpoints.save(tmp_path / "state.safetensors", CONFIG, random_parameters(CONFIG), "torch-transformer")
    settings = ["heads=3", "padding_id=none", "scale_embedding=false", "epsilon=1e-3", "activation=gelu_tanh", "norm_placement=pre"]
    flags = [word for text in settings for word in ("--set", text)]
    run(convert, tmp_path / "state.safetensors", tmp_path / "a.safetensors", *TORCH, "--preset", "semillero", *flags)
    changes = {"padding_id": None, "scale_embedding": False, "epsilon": 1e-3, "activation": "gelu_tanh", "norm_placement": "pre"}
    assert canonical.load(tmp_path / "a.safetensors").config == CONFIG.replace(**changes)


def test_convert_to_another_dtype_and_to_shards(tmp_path):
    arrays = random_parameters(CONFIG, "float64")
    arrays[QUERY][0, 0, 0] = 1e5
    canonical.save(tmp_path / "a.safetensors", CONFIG, arrays)
    both = ("--from", "canonical", "--to", "canonical")
    output = run(convert, tmp_path / "a.safetensors", tmp_path / "b", *both, "--dtype", "bfloat16", "--max-shard-bytes", 4000, "--json")
    assert json.loads(output)["dtype"] == "bfloat16"
    expected = {name: array.astype(ml_dtypes.bfloat16) for name, array in arrays.items()}
    assert_same_bits(canonical.load(tmp_path / "b").parameters, expected)
    with pytest.raises(ValueError, match=f"values are too large for float16 in {QUERY}"):
        run(convert, tmp_path / "a.safetensors", tmp_path / "c.safetensors", *both, "--dtype", "float16")
    assert not (tmp_path / "c.safetensors").exists()


def test_convert_replaces_only_by_force(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        canonical.save(tmp_path / name, CONFIG, random_parameters(CONFIG, seed=seed))
    before = (tmp_path / "b").read_bytes()
    both = (tmp_path / "a", tmp_path / "b", "--from", "canonical", "--to", "canonical")
    with pytest.raises(ValueError, match="b exists; replace it with --force"):
        run(convert, *both)
    assert (tmp_path / "b").read_bytes() == before
    run(convert, *both, "--force")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes() != before
    with pytest.raises(ValueError, match=r"the folder .*nowhere does not exist"):
        run(convert, tmp_path / "a", tmp_path / "nowhere" / "b", *both[2:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*TORCH, "--set", "heads"), "a setting must be FIELD=VALUE; got 'heads'"),
        ((*TORCH, "--set", "head=3"), "unknown config field 'head' (nearest: heads)"),
        ((*TORCH, "--set", "heads=3", "--set", "heads=4"), "heads is set twice"),
        ((*TORCH, "--set", "heads=3", "--preset", "semilero"), "preset must be one of"),
        ((*TORCH, "--preset", "semillero"), "the shapes cannot tell heads"),
        (("--from", "torch-transformer", "--to", "torch-transformer"), "one of the two formats must be canonical"),
        (("--from", "canonical", "--to", "canonical", "--preset", "tiny"), "--preset means nothing from canonical to canonical"),
        (
            ("--from", "canonical", "--to", "torch-transformer", "--set", "heads=3"),
            "--set means nothing from canonical to torch-transformer",
        ),
        (("--from", "canonical", "--to", "canonical"), "metadata must hold the config"),
    ],
)
def test_convert_writes_nothing_when_anything_is_wrong(tmp_path, arguments, message):
    checkpoints.save(tmp_path / "state.safetensors", CONFIG, random_parameters(CONFIG), "torch-transformer")
    with pytest.raises(ValueError) as caught:
        run(convert, tmp_path / "state.safetensors", tmp_path / "a.safetensors", *arguments)
    assert message in str(caught.value)
    assert os.listdir(tmp_path) == ["state.safetensors"]


def test_inspect_a_canonical_file(tmp_path):
    arrays = random_parameters(TIED, "bfloat16")
    canonical.save(tmp_path / "a.safetensors", TIED, arrays)
    output = run(inspect, tmp_path / "a.safetensors")
    for text in ("bfloat16", f"{parameters.count(TIED):,} parameters", "norm_placement", "logits.kernel", QUERY, "d h k", "12 3 4"):
        assert text in output
    found = json.loads(run(inspect, tmp_path / "a.safetensors", "--json"))
    assert found["config"] == TIED.to_dict() and found["ties"] == parameters.ties(TIED) and found["dtype"] == "bfloat16"
    assert found["parameter_count"] == parameters.count(TIED)
    (row,) = (row for row in found["tensors"] if row["name"] == QUERY)
    values = arrays[QUERY].astype(np.float64)
    assert row == {
        "name": QUERY, "axes": "d h k", "dtype": "bfloat16", "shape": [12, 3, 4],
        "mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max(),
    }  # fmt: skip


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_inspect_a_foreign_file(tmp_path, suffix):
    torch = pytest.importorskip("torch")
    state = {"[red]w": np.array([[1.0, np.nan]], np.float32), "empty": np.zeros((0, 3), np.float32), "steps": np.array([1, 3])}
    path = tmp_path / f"a{suffix}"
    if suffix == ".pt":
        torch.save({name: torch.from_numpy(array) for name, array in state.items()}, path)
    else:
        container.write(path, state, {"format": "pt"})
    output = run(inspect, path)
    assert "raw tensors, 3" in output and "[red]w" in output and "int64" in output
    rows = {row["name"]: row for row in json.loads(run(inspect, path, "--json"))["tensors"]}
    assert rows["steps"]["mean"] == 2 and rows["[red]w"]["mean"] is None and rows["empty"]["shape"] == [0, 3]


def test_inspect_a_damaged_file_lists_all_problems(tmp_path):
    arrays = random_parameters(CONFIG)
    for name in ("missing", "extra", "nan"):
        damaged(name)[0](arrays)
    path = write_raw(tmp_path / "a.safetensors", arrays)
    with pytest.raises(ValueError) as caught:
        run(inspect, path)
    result = CliRunner().invoke(inspect, [str(path), "--json"])
    assert result.exit_code == 2
    problems = json.loads(result.output)["problems"]
    assert len(problems) == 3 and all(problem in str(caught.value) for problem in problems)
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="is empty"):
        run(inspect, tmp_path / "empty")
