"""Exports of the ports in their runtimes: every function of every family matches the reference at sizes
other than those traced, in decoding steps, and for ids out of range.
"""

import os
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from export_models import MODELS, inputs, stepped, values, wanted, wanted_steps
from kinds import conformance

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from rosettaformer.common.backends import transformer
from rosettaformer.files import checkpoints
from rosettaformer.files.artefacts import export as exporting
from rosettaformer.files.artefacts import manifest
from rosettaformer.files.artefacts.bundle import Bundle
from rosettaformer.files.artefacts.export.functions import of_config
from rosettaformer.files.artefacts.kinds import KINDS
from rosettaformer.files.artefacts.opening import open_artefact
from rosettaformer.files.artefacts.signature import Tensor

ATOL = {"float64": 1e-12, "float32": 2e-5, "float16": 0.1, "bfloat16": 0.4}
# format -> the dtype of its exports here, that of ids, and the text of its error for ids out of range; JAX gives NaN
FORMATS = {
    "pt2": ("float64", "int64", r"out of range|32"),
    "onnx": ("float64", "int64", r"out of data bounds|out of range"),
    "savedmodel": ("float64", "int64", "is not in"),
    "litert": ("float32", "int64", "gather index out of bounds"),
    "stablehlo": ("float64", "int32", ""),
}
# ONNX has no float64 erf
EACH = [one for one in product(FORMATS, MODELS) if one != ("onnx", "bert")]
QUICK = ("pt2", "gpt2")
HALVES = [*product(("savedmodel", "stablehlo"), ("bfloat16", "float16")), ("litert", "float16")]
SHAPES = ((5, (5, 1, 1, 3)), (3, (10,)), (1, (1,)), (5, (17,)))
NO_ROWS = (0, (1, 2))  # a symbol of JAX is at least 1


def export(folder: Path, kind: str, name: str, dtype: str) -> Path:
    backend, packages = exporting.WRITERS[kind]
    for package in ({"tf": "tensorflow"}.get(backend, backend), *packages):
        pytest.importorskip(package)
    file, out = folder / f"{name}.safetensors", folder / f"model{KINDS[kind].suffix}"
    checkpoints.save(file, MODELS[name], values(name, "float32" if dtype == "float32" else "float64"))
    assert exporting.export(file, kind, out, dtype) == manifest.read(out)
    return out


def sizes(tensors: Iterable[Tensor]) -> set[tuple[object, ...]]:
    """Returns the sizes in a signature; ONNX marks an input's new value with the prefix `new_`."""
    shapes = {one.name: tuple(size if isinstance(size, int) else "" for size in one.shape) for one in tensors}
    return {(one.name.removeprefix("new_"), one.dtype, shapes[one.name]) for one in tensors}


@pytest.mark.parametrize(("kind", "name"), [QUICK, *(conformance(one) for one in EACH if one != QUICK)])
def test_every_function_is_the_reference_s(kind: str, name: str, tmp_path: Path) -> None:
    (dtype, whole, refusal), config = FORMATS[kind], MODELS[name]
    path = export(tmp_path, kind, name, dtype)
    bundle, functions = Bundle(path), of_config(config, dtype, whole)
    assert {*bundle.names} == {*functions}
    for function, entry in functions.items():
        file, signature = bundle.place(function)
        found = open_artefact(file).entries[signature]
        assert (sizes(found.inputs), sizes(found.outputs)) == (sizes(entry.inputs), sizes(entry.outputs))

    def run(function: str, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {output.removeprefix("new_"): array for output, array in bundle.run(function, given).items()}

    def assert_close(given: Mapping[str, np.ndarray]) -> None:
        found, expected = run("forward", given), wanted(name, given)
        assert found.keys() == expected.keys()
        for output, array in expected.items():
            np.testing.assert_allclose(found[output], array, rtol=0, atol=ATOL[dtype], err_msg=output)

    for rows, splits in (*SHAPES, *[NO_ROWS] * (kind in ("pt2", "onnx"))):
        given = inputs(name, rows, sum(splits), whole)
        assert_close(given)
        if config.decoder_layers:
            logits = stepped(name, run, given, splits, dtype)
            np.testing.assert_allclose(logits, wanted_steps(name, given, splits), rtol=0, atol=ATOL[dtype])
    given, side = inputs(name, ids=whole), "target" if config.decoder_layers else "source"
    output = next(iter(wanted(name, given)))
    for wrong in (-1, 19, 1000):
        ids = given[side].copy()
        ids[1, 4] = wrong
        if kind == "stablehlo":
            found = run("forward", given | {side: ids})[output]
            assert [bool(np.isnan(row).any()) for row in found] == [False, True, False]
        else:
            with pytest.raises(Exception, match=refusal):
                run("forward", given | {side: ids})
    if config.max_positions:
        beyond = inputs(name, 2, config.max_positions + 1, whole)
        if kind == "stablehlo":
            assert np.isnan(run("forward", beyond)[output][0, config.max_positions]).all()
        else:
            with pytest.raises(Exception, match=refusal):
                run("forward", beyond)
    assert_close(given)  # an invalid call does not affect the next one


@pytest.mark.conformance
@pytest.mark.parametrize(("kind", "dtype"), HALVES)
def test_half_precision_is_that_of_the_file(kind: str, dtype: str, tmp_path: Path) -> None:
    """LiteRT stores float16 and computes in float32."""
    name = "llama" if kind == "stablehlo" else "gpt2"
    artefact, given = open_artefact(export(tmp_path, kind, name, dtype)), inputs(name, ids=FORMATS[kind][1])
    found, (output,) = artefact.run("forward", given)["logits_btv"], artefact.entries["forward"].outputs
    assert str(found.dtype) == output.dtype == ("float32" if kind == "litert" else dtype)
    atol = 0.1 if kind == "stablehlo" else ATOL[dtype]
    np.testing.assert_allclose(found.astype(float), wanted(name, given)["logits_btv"], rtol=0, atol=atol)


@pytest.mark.conformance
def test_manifests_say_what_becomes_of_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sinusoids of a LiteRT model end where its manifest says."""
    for kind, said in (("pt2", "refused"), ("stablehlo", {"tokens": "nan", "positions": "nan"})):
        assert manifest.read(export(tmp_path, kind, "gpt2", "float32")).ids == said
    pytest.importorskip("ai_edge_litert")
    monkeypatch.setattr("rosettaformer.files.artefacts.export.tf.POSITIONS", 12)
    path = export(tmp_path, "litert", "paper", "float32")
    assert manifest.read(path).ids["positions"] == "refused from 12 on"
    artefact, given = open_artefact(path), inputs("paper", 2, 11)
    found, expected = artefact.run("forward", given), wanted("paper", given)
    np.testing.assert_allclose(found["logits_btv"], expected["logits_btv"], rtol=0, atol=ATOL["float32"])
    with pytest.raises(RuntimeError, match="gather index out of bounds"):
        artefact.run("forward", inputs("paper", 2, 12))


@pytest.mark.parametrize(
    ("kind", "name", "dtype", "limit", "said"),
    [
        ("onnx", "bert", "float64", 0, r"float64.*docs/artefacts.md#precision$"),
        ("onnx", "gpt2", "bfloat16", 0, r"bfloat16.*docs/artefacts.md#precision$"),
        ("litert", "gpt2", "float64", 0, r"computes in float32.*; see docs/artefacts.md#litert$"),
        ("litert", "gpt2", "bfloat16", 0, r"computes in float32.*; see docs/artefacts.md#litert$"),
        ("litert", "gpt2", "float32", 1 << 10, r"smaller than 2 GiB.*; see docs/artefacts.md#litert$"),
        ("stablehlo", "gpt2", "float32", 1 << 10, r"2 GiB.*docs/artefacts.md#stablehlo$"),
    ],
)
def test_what_no_file_holds_is_refused_and_leaves_nothing(
    kind: str, name: str, dtype: str, limit: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit:
        monkeypatch.setattr(f"rosettaformer.files.artefacts.export.{exporting.WRITERS[kind][0]}.LIMIT", limit)
    with pytest.raises(ValueError, match=said):
        export(tmp_path, kind, name, dtype)
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.safetensors"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "model.safetensors"
    checkpoints.save(file, MODELS["gpt2"], values("gpt2", "float32"))
    (tmp_path / "taken.step.pt2").touch()
    for name, said in (("a.onnx", ".pt2"), ("no/a.pt2", "does not exist"), ("taken.pt2", "--force")):
        with pytest.raises(ValueError, match=said):
            exporting.export(file, "pt2", tmp_path / name)
    monkeypatch.setattr("torch.export.save", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        exporting.export(file, "pt2", tmp_path / "a.pt2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "taken.step.pt2"]


def test_a_model_of_another_dtype_is_not_written_under_a_false_name(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    from rosettaformer.files.artefacts.export import jax as writer

    with jax.enable_x64(False):
        model = transformer("jax", MODELS["gpt2"], values("gpt2", "float32"))
    with pytest.raises(ValueError, match="float64; got float32"):
        writer.write(model, MODELS["gpt2"], "stablehlo", tmp_path / "model.stablehlo", "float64")
