"""SavedModel and LiteRT exports of the TensorFlow port: every function of every family, at sizes that none was traced for, in steps, and on
wrong ids.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from export_models import MODELS, SPLITS, inputs, stepped, values, wanted, wanted_steps

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")

from rosettaformer.artefacts.export import Exported  # noqa: E402
from rosettaformer.artefacts.export import tf as export  # noqa: E402
from rosettaformer.artefacts.export.functions import of_config  # noqa: E402
from rosettaformer.artefacts.opening import open_artefact  # noqa: E402
from rosettaformer.backends import transformer  # noqa: E402

ATOL = {"float64": 1e-12, "float32": 2e-5, "float16": 0.1, "bfloat16": 0.4}
REFUSED = {"savedmodel": "is not in", "litert": "gather index out of bounds"}


def written(kind: str, name: str, folder: Path, dtype: str) -> tuple[Path, Exported]:
    path = folder / ("model.tflite" if kind == "litert" else "model")
    model = transformer("tf", MODELS[name], values(name, dtype))
    return path, export.write(model, MODELS[name], kind, path, dtype)


@pytest.mark.conformance
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("kind", "dtype"), [("savedmodel", "float64"), ("litert", "float32")])
def test_every_function_is_the_reference_s(kind: str, dtype: str, name: str, tmp_path: Path) -> None:
    if kind == "litert":
        pytest.importorskip("ai_edge_litert")
    path, exported = written(kind, name, tmp_path, dtype)
    artefact, functions = open_artefact(path), of_config(MODELS[name], dtype)
    assert exported.entries == functions
    assert {*artefact.entries} == {*functions} | ({"serving_default"} if kind == "savedmodel" else set())
    for function, entry in functions.items():
        found = artefact.entries[function]
        for mine, said in ((found.inputs, entry.inputs), (found.outputs, entry.outputs)):
            sizes = {(one.name, one.dtype, tuple(size if isinstance(size, int) else "" for size in one.shape)) for one in said}
            assert {(one.name, one.dtype, one.shape) for one in mine} == sizes
    for rows, length in ((3, 10), (1, 1), (5, 17)):
        given = inputs(name, rows, length)
        found, expected = artefact.run("forward", given), wanted(name, given)
        assert found.keys() == expected.keys()
        for output, array in expected.items():
            np.testing.assert_allclose(found[output], array, rtol=0, atol=ATOL[dtype], err_msg=output)
    given = inputs(name)
    if MODELS[name].decoder_layers:
        logits = stepped(name, artefact.run, given, SPLITS, dtype)
        np.testing.assert_allclose(logits, wanted_steps(name, given, SPLITS), rtol=0, atol=ATOL[dtype])
    side = "target" if MODELS[name].decoder_layers else "source"
    for wrong in (-1, 19, 1000):
        ids = given[side].copy()
        ids[0, 4] = wrong
        with pytest.raises((tf.errors.InvalidArgumentError, RuntimeError), match=REFUSED[kind]):
            artefact.run("forward", given | {side: ids})
    if MODELS[name].max_positions:
        with pytest.raises((tf.errors.InvalidArgumentError, RuntimeError), match=REFUSED[kind]):
            artefact.run("forward", inputs(name, 2, MODELS[name].max_positions + 1))
    right = next(iter(wanted(name, given)))  # a call that was refused leaves the next one as it is
    np.testing.assert_allclose(artefact.run("forward", given)[right], wanted(name, given)[right], rtol=0, atol=ATOL[dtype])


@pytest.mark.conformance
@pytest.mark.parametrize(("kind", "dtype"), [("savedmodel", "bfloat16"), ("savedmodel", "float16"), ("litert", "float16")])
def test_half_precision(kind: str, dtype: str, tmp_path: Path) -> None:
    """LiteRT stores float16, and computes in float32."""
    if kind == "litert":
        pytest.importorskip("ai_edge_litert")
    path, exported = written(kind, "gpt2", tmp_path, dtype)
    artefact, given = open_artefact(path), inputs("gpt2")
    found = artefact.run("forward", given)["logits_btv"]
    assert str(found.dtype) == ("float32" if kind == "litert" else dtype) == exported.entries["forward"].outputs[0].dtype
    np.testing.assert_allclose(found.astype(float), wanted("gpt2", given)["logits_btv"], rtol=0, atol=ATOL[dtype])


@pytest.mark.conformance
def test_sinusoids_of_a_litert_model_end_where_its_manifest_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ai_edge_litert")
    monkeypatch.setattr(export, "POSITIONS", 12)
    path, exported = written("litert", "paper", tmp_path, "float32")
    assert exported.ids["positions"] == "refused from 12 on"
    artefact, given = open_artefact(path), inputs("paper", 2, 11)
    np.testing.assert_allclose(artefact.run("forward", given)["logits_btv"], wanted("paper", given)["logits_btv"], rtol=0, atol=2e-5)
    with pytest.raises(RuntimeError, match="gather index out of bounds"):
        artefact.run("forward", inputs("paper", 2, 12))


def test_what_litert_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {"float64": "computes in float32", "bfloat16": "computes in float32"}
    for dtype, why in reasons.items():
        with pytest.raises(ValueError, match=rf"{why}.*; see docs/artefacts.md#litert$"):
            written("litert", "gpt2", tmp_path, dtype)
    monkeypatch.setattr(export, "LIMIT", 1 << 10)
    with pytest.raises(ValueError, match=r"smaller than 2 GiB.*; see docs/artefacts.md#litert$"):
        written("litert", "gpt2", tmp_path, "float32")
    assert not list(tmp_path.iterdir())
