"""Files of decoders with experts: one tensor for each expert or for all of a layer, in any dtype, complete or not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_models import assert_same_bits
from decoder_folders import MIXTURES, all_in_float64, drawn, loaded
from hugging_face_folders import assert_close, made, ours, saved, theirs, tokens
from kinds import every
from messages import mentions
from model_folders import edit
from test_hugging_face_folders import altered

from reference_numpy import experts, parameters
from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import CheckpointError, container, tensor_report
from rosettaformer.files.checkpoints.hugging_face import examine, gradients, new
from rosettaformer.files.checkpoints.strict import numpy_dtype

pytest.importorskip("transformers", reason="transformers is not installed")
torch = pytest.importorskip("torch")

BF16, FEW = numpy_dtype("bfloat16"), 0.02
SINGLY = [family for family in MIXTURES if family not in ("granitemoe", "granitemoeshared", "gpt_oss")]


@pytest.mark.parametrize("family", MIXTURES)
def test_both_forms_of_a_file_are_the_same_model(tmp_path: Path, family: str) -> None:
    """The library writes one tensor for each expert, or what its classes hold; gradients have the names of the latter."""
    model = made(drawn(family, 0))
    model.save_pretrained(tmp_path / "single")
    model.save_pretrained(tmp_path / "together", save_original_format=False)
    single, together = (checkpoints.load(tmp_path / name) for name in ("single", "together"))
    assert single.config == together.config
    assert_same_bits(together.parameters, single.parameters)
    names = [{*container.read(tmp_path / name).tensors} for name in ("single", "together")]
    assert (names[0] == names[1]) == (family == "gpt_oss")
    values = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    found = gradients.canonical(tmp_path / "single", single.config, values)
    wanted = {name: np.zeros_like(array) if "selection" in name else array for name, array in single.parameters.items()}
    assert_same_bits({name: found[name] for name in wanted}, wanted)


def wrong(found: np.ndarray, wanted: np.ndarray) -> float:
    """Returns the share of wrong numbers: in float32 up to the last bits, in half precision exactly."""
    same = np.isclose(found, wanted, rtol=1e-5, atol=0) if found.dtype == np.float32 else found == wanted
    return 1 - float(np.mean(same))


@pytest.mark.parametrize("family", MIXTURES)
def test_a_router_has_the_librarys_dtypes(tmp_path: Path, family: str) -> None:
    """Weights for bfloat16 inputs whose products are exact in float32; another dtype of a step would show."""
    model, rng = made(drawn(family, 1)._replace(dtype="float32")), np.random.default_rng(0)
    (module, *_) = [part for part in model.modules() if type(part).__name__.lower().endswith("topkrouter")]
    for name, tensor in module.named_parameters():  # kernels add a bias before they round
        tensor.data = torch.from_numpy((name != "bias") * rng.integers(-64, 65, tensor.shape) / 64).float()
    checkpoint = checkpoints.load(saved_of(model, tmp_path))
    config, width = checkpoint.config, checkpoint.config.model_width
    own = parameters.nest(checkpoint.parameters)["decoder"]["layers"]
    own = next(layer["feed_forward"]["router"] for layer in own.values() if "router" in layer["feed_forward"])
    own = {name: array.astype(BF16) for name, array in own.items()}
    x_btd = (rng.integers(-8, 9, (1, 400, width)) / 8).astype(BF16)
    with torch.no_grad():
        logits, weights, chosen = module.to(torch.bfloat16)(torch.from_numpy(x_btd[0].astype(np.float32)).to(torch.bfloat16))
    order = np.sort(logits.double().numpy(), axis=-1)
    clear = order[:, -config.experts_per_token] != order[:, -config.experts_per_token - 1]
    dense = np.zeros((400, config.experts), np.float32)
    np.put_along_axis(dense, chosen.numpy(), weights.float().numpy(), axis=-1)

    def far(**fields: str) -> float:
        found = experts.router(own, config.replace(**fields), x_btd)[0]
        return wrong(found[clear], dense[clear].astype(found.dtype))

    assert clear.mean() > 0.5 and far() < FEW
    assert config.router_weight_dtype == ("float32" if weights.dtype == torch.float32 else "model")
    wide = config.router_score_dtype == "float32"  # rounded products would show
    divided = config.router_normalize or config.router_weight_dtype == "float32"  # rounded scores would show
    for name in (["router_product_dtype"] if wide else []) + (["router_score_dtype"] if divided else []):
        other = {"float32": "model", "model": "float32"}[getattr(config, name)]
        assert far(**{name: other}) > FEW, name


def saved_of(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def test_a_selection_bias_stays_in_float32(tmp_path: Path) -> None:
    """The library keeps it so in models of half precision; other tensors must agree."""
    saved(drawn("glm4_moe", 1)._replace(options={}), tmp_path / "a")
    wide = {name: array.astype(np.float32) + 1e-5 for name, array in container.read(tmp_path / "a").tensors.items() if "correction" in name}
    folder = altered(tmp_path / "a", lambda tensors: tensors.update(wide))
    first = checkpoints.load(folder)
    kinds = {name: str(array.dtype) for name, array in first.parameters.items()}
    assert {*kinds.values()} == {"bfloat16", "float32"}
    assert all(("selection_bias" in name) == (kind == "float32") for name, kind in kinds.items())
    checkpoints.save(tmp_path / "b.safetensors", first.config, first.parameters, foreign=first.foreign)
    second = checkpoints.load(tmp_path / "b.safetensors")
    checkpoints.save(tmp_path / "c", second.config, second.parameters, "hugging-face", foreign=second.foreign)
    assert_same_bits(container.read(tmp_path / "c").tensors, container.read(folder).tensors)
    norm = {"model.norm.weight": container.read(folder).tensors["model.norm.weight"].astype(np.float32)}
    with pytest.raises(CheckpointError) as caught:
        checkpoints.load(altered(tmp_path / "a", lambda tensors: tensors.update(norm)))
    assert len(caught.value.problems) == 1 and mentions(str(caught.value), "model.norm.weight … bfloat16 … float32")


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    model = drawn("glm4_moe", 1)._replace(options={})
    folder, layers = saved(model, tmp_path / "a"), model.settings["num_hidden_layers"]
    first = checkpoints.load(folder)
    more = {f"model.layers.{layers}.{name}.weight": np.ones((3, 3), BF16) for name in ("eh_proj", "enorm", "mlp.experts.0.up_proj")}
    assert_same_bits(checkpoints.load(altered(folder, lambda tensors: tensors.update(more))).parameters, first.parameters)
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        checkpoints.load(altered(folder, lambda tensors: tensors.pop(f"model.layers.{layers}.eh_proj.weight")))


@pytest.mark.parametrize("family", every(2, SINGLY))
def test_experts_that_are_not_there_are_named(tmp_path: Path, family: str) -> None:
    """A missing one; fewer or many more than config.json says, without time or memory for those; both forms at once."""
    model = drawn(family, 0)
    folder, together = saved(model, tmp_path / "a"), tmp_path / "b"
    made(model).save_pretrained(together, save_original_format=False)
    native = container.read(folder).tensors
    name = next(name for name in native if ".experts.1." in name)
    (entry,) = [entry for entry in model.settings if entry.endswith("_experts") and not entry.startswith("n_shared")]
    for place in (folder, together):
        for count in (model.settings[entry] + 2, 10**9):
            with pytest.raises(CheckpointError) as caught:
                checkpoints.load(edit(altered(place, dict), **{entry: count}))
            assert any(entry in problem and str(count) in problem for problem in caught.value.problems)
    with pytest.raises(CheckpointError, match=name):
        checkpoints.load(altered(folder, lambda tensors: tensors.pop(name)))
    with pytest.raises(CheckpointError, match=r"unexpected.*experts\.0"):
        checkpoints.load(altered(folder, lambda tensors: tensors.update(container.read(together).tensors)))


@pytest.mark.parametrize("family", every(3, SINGLY))
def test_a_view_holds_no_experts_in_memory(tmp_path: Path, family: str) -> None:
    """They are put together on access, whole or, when they are written, one by one."""
    folder = saved(drawn(family, 0), tmp_path / "a")
    view = checkpoints.view(folder)
    names = [name for name in view.parameters if ".experts." in name]
    for name in names:
        assert isinstance(view.parameters[name], np.ndarray)
        assert view.parameters[name].shape == parameters.shapes(view.config)[name]
    first = view.parameters[names[0]]
    _ = [view.parameters[name] for name in view.parameters]
    assert view.parameters[names[0]] is not first
    checkpoints.save(tmp_path / "b", view.config, view.parameters, "hugging-face", foreign=view.foreign)
    assert_same_bits(container.read(tmp_path / "b").tensors, container.read(folder).tensors)


@pytest.mark.parametrize(
    "entries", [{}, {"rope_parameters": None}, {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 90.0}]
)
def test_gpt_oss_has_a_scaling_of_its_own(tmp_path: Path, entries: dict[str, Any]) -> None:
    """Unless config.json sets another, also in its earlier form."""
    model = drawn("gpt_oss", 0)
    folder = edit(saved(model, tmp_path / "a"), **{"rope_parameters": ..., **entries})
    checkpoint, given = checkpoints.load(folder), tokens(model.settings["vocab_size"], "left")
    assert checkpoint.config.rotary_scaling.kind == ("linear" if "rope_scaling" in entries else "yarn")
    with all_in_float64():
        assert_close(ours(checkpoint, model.kind, given), theirs(loaded(folder, model.kind), given), given["mask"])


def test_experts_and_layers_share_a_line_of_the_report(tmp_path: Path) -> None:
    new.write("qwen2_moe", tmp_path / "a")
    lines = {line.name: line.layers for line in tensor_report.of_examination(examine(tmp_path / "a"))}
    assert lines["model.layers.{0,2,3}.mlp.experts.{0..12}.up_proj.weight"] == 39
    assert lines["model.layers.{0,2,3}.mlp.gate.weight"] == 3 and lines["model.layers.1.mlp.up_proj.weight"] == 1
