"""Exports from the PyTorch port, run by their runtimes without us: what the reference gives, at every shape; in steps, too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_models import random_parameters

from reference_numpy import cache, parameters, transformer
from reference_numpy.presets import PRESETS
from reference_numpy.rotary_scaling import RotaryScaling
from rosettaformer import checkpoints
from rosettaformer.artefacts import export as exporting
from rosettaformer.artefacts import manifest

torch = pytest.importorskip("torch")
from impl_torch.cache import decode_in_steps  # noqa: E402
from impl_torch.programs.entries import Encode, Step  # noqa: E402
from impl_torch.transformer import Transformer  # noqa: E402

SIZES = {
    "source_vocabulary": 19,
    "target_vocabulary": 19,
    "model_width": 16,
    "heads": 4,
    "key_size": 8,
    "value_size": 8,
    "feed_forward_width": 8,
}
LONGROPE = RotaryScaling.from_dict(
    {
        "kind": "longrope",
        "long_factors": [2.0, 3, 4, 5],
        "short_factors": [1.0, 1.1, 1.2, 1.3],
        "original_length": 7,
        "attention_factor": 1.2,
    }
)


def small(name: str, **changes: Any) -> Any:
    """A small config of a preset."""
    whole = PRESETS[name]
    sizes = SIZES | {"key_value_heads": 4 if whole.key_value_heads == whole.heads else 2}
    sizes |= {side: 2 for side in ("encoder_layers", "decoder_layers") if getattr(whole, side)}
    sizes |= {"max_positions": 24} if whole.max_positions else {}
    return whole.replace(**sizes | changes)


CONFIGS = {
    "paper": small("tiny", value_size=4),
    "gpt2": small("gpt2_small", decoder_layers=1),
    "llama": small("llama2_7b", key_value_heads=2),
    "gemma3": small("gemma3_1b", window=3, decoder_layers=7),
    "phi3": small("llama2_7b", rotary_scaling=LONGROPE, layer_pattern=("local",), window=4),
    "offset": small("tiny", positions="learned", max_positions=24, position_offset=2, position_start="row"),
}


def inputs(config: Any, batch: int, length: int, source: int = 5) -> dict[str, np.ndarray]:
    """Ids and masks: a row padded on the left, one on the right, an empty one."""
    rng = np.random.default_rng(batch + length)
    found = {}
    for side, size, axis in (("source", source, "s"), ("target", length, "t")):
        if getattr(config, "encoder_layers" if side == "source" else "decoder_layers"):
            mask = np.ones((batch, size), bool)
            if batch > 2:
                mask[0, : size // 2], mask[1, size - 1 :], mask[2] = False, False, False
            found |= {side: rng.integers(1, 19, (batch, size)), f"{side}_mask_b{axis}": mask}
    return found


def in_steps(config: Any, step: Any, encode: Any, given: Mapping[str, np.ndarray], splits: tuple[int, ...], dtype: str) -> np.ndarray:
    """The logits of a target that is read in steps by functions of arrays by name."""
    rows = len(given["target"])
    sizes = {"keys_lbsgk": config.key_size, "values_lbsge": config.value_size}
    kept = {name: np.zeros((config.decoder_layers, rows, 0, config.key_value_heads, size), dtype) for name, size in sizes.items()}
    memory = {}
    if config.cross_attention:
        memory = {"source_mask_bs": given["source_mask_bs"]}
        encoded = encode({name: given[name] for name in ("source", "source_mask_bs")})
        memory |= {name: encoded[name] for name in ("cross_keys_lbsgk", "cross_values_lbsge")}
    logits, read = [], 0
    for length in splits:
        end = read + length
        found = step({"target": given["target"][:, read:end], "target_mask_bs": given["target_mask_bt"][:, :end], **memory, **kept})
        logits.append(found["logits_btv"])
        kept, read = {name: found.get(f"new_{name}", found.get(name)) for name in kept}, end
    return np.concatenate(logits, axis=1)


def of_module(module: Any) -> Any:
    """A module as a function of arrays by name; a compiled one takes every array to lie as one piece, and does not look."""

    def call(given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = module(**{name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in given.items()})
        return {name: x.numpy() for name, x in found.items()}

    return call


@pytest.mark.parametrize("name", CONFIGS)
def test_the_step_of_an_export_is_the_ports_own(name: str) -> None:
    config = CONFIGS[name]
    torch.manual_seed(0)
    model = Transformer(config).double().eval().requires_grad_(False)
    for batch, splits in ((3, (5, 1, 1, 3)), (3, (10,)), (1, (1,)), (0, (2, 1))):
        given = inputs(config, batch, sum(splits))
        found = in_steps(config, of_module(Step(model)), of_module(Encode(model)), given, splits, "float64")
        held = {key: torch.from_numpy(value) for key, value in given.items()}
        memory = model.encode(held["source"], held["source_mask_bs"]) if config.cross_attention else None
        wanted = decode_in_steps(model, held["target"], memory, splits, held.get("source_mask_bs"), held["target_mask_bt"])
        np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=1e-13)


def opened(path: Path) -> Any:
    """The function in a file, by its runtime."""
    if path.suffix == ".pt2":
        return of_module(torch.export.load(path).module())
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return lambda given: dict(zip(names, session.run(names, dict(given)), strict=True))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Exports a config once: its file, and its parameters."""
    folder, done = tmp_path_factory.mktemp("exports"), {}

    def of(name: str, config: Any, kind: str, dtype: str) -> Any:
        if (key := (name, kind, dtype)) not in done:
            arrays = random_parameters(config, "float64")
            checkpoints.save(folder / f"{name}.safetensors", config, arrays)
            out = folder / f"{name}-{dtype}{'.onnx' if kind == 'onnx' else '.pt2'}"
            said = exporting.export(folder / f"{name}.safetensors", kind, out, dtype)
            assert manifest.read(out) == said
            done[key] = out, parameters.nest(arrays)
        return done[key]

    return of


SECOND = [(name, kind) for name in CONFIGS for kind in ("pt2", "onnx") if (name, kind) != ("gpt2", "pt2")]
FILES = [("gpt2", "pt2"), *(pytest.param(*one, marks=pytest.mark.second) for one in SECOND)]


@pytest.mark.parametrize(("name", "kind"), FILES)
def test_a_file_gives_what_the_reference_gives_at_every_shape(name: str, kind: str, exported: Any) -> None:
    config = CONFIGS[name]
    out, tree = exported(name, config, kind, "float64")
    forward, step = opened(out), opened(exporting.beside(out, "step"))
    encode = opened(exporting.beside(out, "encode")) if config.cross_attention else None
    for batch, splits, source in ((3, (5, 1, 1, 3), 5), (1, (1,), 1), (2, (6,), 1), (0, (1, 2), 4)):
        given = inputs(config, batch, sum(splits), source)
        masks = given.get("source_mask_bs"), given["target_mask_bt"]
        wanted = transformer.transformer(tree, config, given.get("source"), given["target"], *masks)
        np.testing.assert_allclose(forward(given)["logits_btv"], wanted, rtol=0, atol=1e-13)
        memory = transformer.encode(tree, config, given["source"], masks[0]) if config.cross_attention else None
        wanted = cache.decode_in_steps(tree, config, given["target"], memory, splits, *masks)
        np.testing.assert_allclose(in_steps(config, step, encode, given, splits, "float64"), wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", ["pt2", pytest.param("onnx", marks=pytest.mark.second)])
def test_ids_out_of_range_are_refused_as_the_manifest_says(kind: str, exported: Any) -> None:
    out, _ = exported("gpt2", CONFIGS["gpt2"], kind, "float64")
    forward = opened(out)
    assert manifest.read(out).ids == "refused"
    given = inputs(CONFIGS["gpt2"], 2, 4)
    for bad in (-1, 19):
        given["target"][1, 2] = bad
        with pytest.raises(Exception, match=r"out of range|out of data bounds"):
            forward(given)
    with pytest.raises(Exception, match=r"24|out of data bounds"):
        forward(inputs(CONFIGS["gpt2"], 1, 25))  # positions beyond the table


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, file = CONFIGS["gpt2"], tmp_path / "model.safetensors"
    checkpoints.save(file, config, random_parameters(config))
    for kind, name, dtype, said in (
        ("onnx", "a.onnx", "bfloat16", "ONNX Runtime has no bfloat16"),
        ("pt2", "a.onnx", "float32", "must have a name that ends with .pt2"),
        ("pt2", "no/a.pt2", "float32", "does not exist"),
    ):
        with pytest.raises(ValueError, match=said):
            exporting.export(file, kind, tmp_path / name, dtype)
    (tmp_path / "taken.step.pt2").touch()
    with pytest.raises(ValueError, match="exists; replace it with --force"):
        exporting.export(file, "pt2", tmp_path / "taken.pt2")
    monkeypatch.setattr("torch.export.save", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        exporting.export(file, "pt2", tmp_path / "a.pt2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "taken.step.pt2"]
