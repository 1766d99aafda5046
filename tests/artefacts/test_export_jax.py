"""StableHLO exports of the JAX port: every function of every family, at several sizes, in steps, and on ids out of range."""

from pathlib import Path

import numpy as np
import pytest
from export_models import MODELS, SPLITS, inputs, stepped, values, wanted, wanted_steps

jax = pytest.importorskip("jax")

from rosettaformer.artefacts.export import Exported, beside  # noqa: E402
from rosettaformer.artefacts.export import jax as export  # noqa: E402
from rosettaformer.artefacts.export.functions import of_config  # noqa: E402
from rosettaformer.artefacts.opening import open_artefact  # noqa: E402
from rosettaformer.backends import transformer  # noqa: E402

EXACT = 1e-12  # float64


def written(name: str, folder: Path, dtype: str = "float64") -> tuple[Path, Exported]:
    path = folder / "model.stablehlo"
    with jax.enable_x64(dtype == "float64"):
        model = transformer("jax", MODELS[name], values(name, dtype))
    return path, export.write(model, MODELS[name], "stablehlo", path, dtype)


@pytest.mark.conformance
def test_the_whole_model_takes_any_sizes_and_gives_nan_for_ids_out_of_range(tmp_path: Path) -> None:
    path, exported = written("gpt2", tmp_path, "float32")
    assert exported.ids == {"tokens": "nan", "positions": "nan"}
    assert exported.files == {"forward": "model.stablehlo", "step": "model.step.stablehlo"}
    artefact, given = open_artefact(path), inputs("gpt2", ids="int32")
    for index, wrong in enumerate((-1, 19, 1000)):
        given["target"][index, 4] = wrong
        found = artefact.run("forward", given)["logits_btv"]
        assert np.isnan(found).any(axis=(1, 2)).tolist() == [row <= index for row in range(3)]
    given = inputs("gpt2", 2, 33, "int32")  # the learned table has 32 positions
    assert np.isnan(artefact.run("forward", given)["logits_btv"][0, 32]).all()


@pytest.mark.conformance
@pytest.mark.parametrize("name", MODELS)
def test_every_function_is_the_reference_s(name: str, tmp_path: Path) -> None:
    path, exported = written(name, tmp_path)
    functions = of_config(MODELS[name], "float64", "int32")
    files = {function: open_artefact(beside(path, function)) for function in functions}
    assert exported.entries == functions
    for function, entry in functions.items():
        found = files[function].entries["forward"]
        for mine, said in ((found.inputs, entry.inputs), (found.outputs, entry.outputs)):
            assert {(one.name, one.dtype, len(one.shape)) for one in mine} == {(one.name, one.dtype, len(one.shape)) for one in said}
    for rows, length in ((3, 10), (1, 1)):
        given = inputs(name, rows, length, "int32")
        found = files["forward"].run("forward", given)
        expected = wanted(name, given)
        assert found.keys() == expected.keys()
        for output, array in expected.items():
            np.testing.assert_allclose(found[output], array, rtol=0, atol=EXACT, err_msg=output)
    if MODELS[name].decoder_layers:
        given = inputs(name, ids="int32")
        logits = stepped(name, lambda function, arrays: files[function].run("forward", arrays), given, SPLITS)
        np.testing.assert_allclose(logits, wanted_steps(name, given, SPLITS), rtol=0, atol=EXACT)


@pytest.mark.conformance
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_that_of_the_file(dtype: str, tmp_path: Path) -> None:
    path, _ = written("llama", tmp_path, dtype)
    artefact, given = open_artefact(path), inputs("llama", ids="int32")
    found = artefact.run("forward", given)["logits_btv"]
    assert str(found.dtype) == dtype == artefact.entries["forward"].outputs[0].dtype
    np.testing.assert_allclose(found.astype(float), wanted("llama", given)["logits_btv"], rtol=0, atol=0.1)


def test_a_model_that_no_file_holds_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "LIMIT", 1 << 10)
    with pytest.raises(ValueError, match=r"2 GiB.*docs/artefacts.md#stablehlo$"):
        written("gpt2", tmp_path, "float32")
    assert not list(tmp_path.iterdir())


def test_a_model_of_another_dtype_is_not_written_under_a_false_name(tmp_path: Path) -> None:
    with jax.enable_x64(False):
        model = transformer("jax", MODELS["gpt2"], values("gpt2", "float32"))
    with pytest.raises(ValueError, match="float64; got float32"):
        export.write(model, MODELS["gpt2"], "stablehlo", tmp_path / "model.stablehlo", "float64")
