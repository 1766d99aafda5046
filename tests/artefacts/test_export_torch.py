"""Exports from the PyTorch port, run by their runtimes without us: what the reference gives, at every shape; in steps, too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export_models import MODELS, inputs, stepped, values, wanted, wanted_steps

from rosettaformer import checkpoints
from rosettaformer.artefacts import export as exporting
from rosettaformer.artefacts import manifest

torch = pytest.importorskip("torch")
from impl_torch.programs.entries import Encode, Forward, Step  # noqa: E402
from rosettaformer.backends import transformer  # noqa: E402

EXACT = 1e-12  # float64
FUNCTIONS = {"forward": Forward, "encode": Encode, "step": Step}
DECODERS = [name for name, config in MODELS.items() if config.decoder_layers]


def of_module(module: Any) -> Any:
    """A module as a function of arrays by name."""

    def call(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = module(**{name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in given.items()})
        return {name: x.numpy() for name, x in found.items()}

    return call


def opened(path: Path) -> Any:
    """The function in a file, by its runtime."""
    if path.suffix == ".pt2":
        return of_module(torch.export.load(path).module())
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return lambda given: {name.removeprefix("new_"): array for name, array in zip(names, session.run(names, dict(given)), strict=True)}


@pytest.mark.parametrize("name", DECODERS)
def test_the_step_is_the_reference_s(name: str) -> None:
    model = transformer("torch", MODELS[name], values(name)).eval().requires_grad_(False)
    for rows, splits in ((5, (5, 1, 1, 3)), (3, (10,)), (1, (1,)), (0, (2, 1))):
        given = inputs(name, rows, sum(splits))
        logits = stepped(name, lambda function, arrays: of_module(FUNCTIONS[function](model))(arrays), given, splits)
        np.testing.assert_allclose(logits, wanted_steps(name, given, splits), rtol=0, atol=EXACT)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Exports a model once, in float64."""
    folder, done = tmp_path_factory.mktemp("exports"), {}

    def of(name: str, kind: str) -> Path:
        if (name, kind) not in done:
            checkpoints.save(folder / f"{name}.safetensors", MODELS[name], values(name))
            out = done[name, kind] = folder / f"{name}.{kind}"
            assert exporting.export(folder / f"{name}.safetensors", kind, out, "float64") == manifest.read(out)
        return done[name, kind]

    return of


SECOND = [(name, kind) for name in MODELS for kind in ("pt2", "onnx") if (name, kind) not in (("gpt2", "pt2"), ("bert", "onnx"))]
FILES = [("gpt2", "pt2"), *(pytest.param(*one, marks=pytest.mark.conformance) for one in SECOND)]


@pytest.mark.parametrize(("name", "kind"), FILES)
def test_a_file_gives_what_the_reference_gives_at_every_shape(name: str, kind: str, exported: Any) -> None:
    out = exported(name, kind)
    files = {function: opened(exporting.beside(out, function)) for function in manifest.read(out).entries}
    for rows, splits in ((5, (5, 1, 1, 3)), (1, (1,)), (2, (6,)), (0, (1, 2))):
        given = inputs(name, rows, sum(splits))
        found = files["forward"](given)
        for output, array in wanted(name, given).items():
            np.testing.assert_allclose(found[output], array, rtol=0, atol=EXACT, err_msg=output)
        if name in DECODERS:
            logits = stepped(name, lambda function, arrays: files[function](arrays), given, splits)
            np.testing.assert_allclose(logits, wanted_steps(name, given, splits), rtol=0, atol=EXACT)


@pytest.mark.parametrize("kind", ["pt2", pytest.param("onnx", marks=pytest.mark.conformance)])
def test_ids_out_of_range_are_refused_as_the_manifest_says(kind: str, exported: Any) -> None:
    out = exported("gpt2", kind)
    forward = opened(out)
    assert manifest.read(out).ids == "refused"
    given = inputs("gpt2", 2, 4)
    for bad in (-1, 19):
        given["target"][1, 2] = bad
        with pytest.raises(Exception, match=r"out of range|out of data bounds"):
            forward(given)
    with pytest.raises(Exception, match=r"32|out of data bounds"):
        forward(inputs("gpt2", 1, 33))  # positions beyond the table


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, bert = tmp_path / "model.safetensors", tmp_path / "bert.safetensors"
    checkpoints.save(file, MODELS["gpt2"], values("gpt2", "float32"))
    checkpoints.save(bert, MODELS["bert"], values("bert", "float32"))
    with pytest.raises(ValueError, match=r"float64.*docs/artefacts.md#precision$"):
        exporting.export(bert, "onnx", tmp_path / "a.onnx", "float64")
    for kind, name, dtype, said in (
        ("onnx", "a.onnx", "bfloat16", "bfloat16"),
        ("pt2", "a.onnx", "float32", ".pt2"),
        ("pt2", "no/a.pt2", "float32", "does not exist"),
    ):
        with pytest.raises(ValueError, match=said):
            exporting.export(file, kind, tmp_path / name, dtype)
    (tmp_path / "taken.step.pt2").touch()
    with pytest.raises(ValueError, match="--force"):
        exporting.export(file, "pt2", tmp_path / "taken.pt2")
    monkeypatch.setattr("torch.export.save", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        exporting.export(file, "pt2", tmp_path / "a.pt2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bert.safetensors", "model.safetensors", "taken.step.pt2"]
