"""The decoders since Llama, of transformers: its results in float64, and every equivalent form of a folder.

The library computes root mean squares, rotary positions and softmax in float32 whatever the model's dtype:
`decoder_folders.in_float64` runs its source with float64 instead.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import FOUR
from checkpoint_models import assert_same_bits
from decoder_folders import BASES, FIRST, KINDS, all_in_float64, class_of, drawn, loaded
from hugging_face_folders import Drawn, assert_close, library_loss, made, ours, saved, theirs, tokens
from kinds import conformance
from model_folders import edit

from reference_numpy import parameters, transformer
from reference_numpy.recipe import PAPER
from reference_numpy.rotary_scaling import RotaryScaling
from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import CheckpointError, container, tables
from rosettaformer.files.checkpoints.hugging_face import FAMILIES
from rosettaformer.files.checkpoints.hugging_face.family import starred
from rosettaformer.use.training.backends import trainer

pytest.importorskip("transformers", reason="transformers is not installed")
torch = pytest.importorskip("torch")

RECIPE = PAPER.replace(beta_1=0.0, microbatches=1)
SEEDS = range(10)
# the first seeds of each family, and the others
SOME = [(family, SEEDS[:2] if family in FIRST else SEEDS[1:2]) for family in KINDS]
EACH = [family if family in FIRST else conformance(family) for family in KINDS]
OTHERS = [conformance((family, SEEDS[2:] if family in FIRST else SEEDS)) for family in KINDS]


@pytest.mark.parametrize(("family", "seeds"), [*SOME, *OTHERS], ids=str)
def test_a_decoder_gives_the_librarys_own_numbers(tmp_path: Path, family: str, seeds: range) -> None:
    """Logits, hidden states and attention maps for rows of equal length and left-padded rows."""
    for seed in seeds:
        model = drawn(family, seed)
        folder = saved(model, tmp_path / f"{seed}")
        checkpoint = checkpoints.load(folder)
        assert {str(array.dtype) for array in checkpoint.parameters.values()} == {model.dtype}
        library = loaded(folder, model.kind)
        for side in ("none", "left"):
            given = tokens(model.settings["vocab_size"], side)
            with all_in_float64():
                wanted = theirs(library, given)
            assert_close(ours(checkpoint, model.kind, given), wanted, given["mask"])


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) if family == "llama" else conformance((family, name)) for family in KINDS for name in FOUR]
)
def test_a_step_of_training_has_the_librarys_loss_and_gradients(tmp_path: Path, family: str, name: str) -> None:
    """For rows padded on the left and on the right: with beta_1 = 0 Adam's first moment is the gradient.

    A left-padded row has a label whose query may attend to nothing: its attention is zero, except in the library's
    eager models, where it is the mean of all values.
    """
    model = drawn(family, 0)
    folder, eager = saved(model, tmp_path), family == "gemma2" or not class_of(model.kind)._supports_sdpa
    checkpoint, sides = checkpoints.load(folder), ("right",) if eager else ("right", "left")
    given = [tokens(model.settings["vocab_size"], side) for side in sides]
    token_bt, mask_bt = (np.concatenate([one[part] for one in given]) for part in ("ids", "mask"))
    target = np.where(mask_bt, np.maximum(token_bt, 1), 0)
    with all_in_float64():
        library = loaded(folder, model.kind, "eager" if eager else "sdpa")
        wanted = library_loss(library, target, RECIPE.smoothing)
        wanted.backward()
    config = checkpoint.config.replace(padding_id=0, attention_dropout_rate=0.0, dropout_rate=0.0)
    run = trainer(name)(config, RECIPE, dict(checkpoint.parameters), compiled=name == "jax")
    np.testing.assert_allclose(float(run.train_step(None, target)), wanted.item(), rtol=1e-12)
    found = {part.removeprefix("first_moment."): array for part, array in run.state().items() if part.startswith("first_moment.")}
    gradients = {part: parameter.grad.numpy() for part, parameter in library.named_parameters()}
    rows = FAMILIES[family].rows(config, map(FAMILIES[family].native, gradients))
    natives = {native.name: native for native in tables.natives(rows, config)}
    least = 1e-15 * max(np.abs(gradient).max() for gradient in gradients.values())  # a key's bias has no gradient if keys do not rotate
    for part, gradient in gradients.items():
        got, size = tables.merged(natives[FAMILIES[family].native(part)], found), np.abs(gradient).max()
        np.testing.assert_allclose(got, gradient, rtol=0, atol=max(1e-10 * size, least), err_msg=part)
        assert size > 0, part


BALANCED = ("mixtral", "qwen2_moe", "olmoe", "granitemoe", "qwen3_moe", "granitemoeshared", "gpt_oss")


@pytest.mark.parametrize("family", [family if family in BALANCED[:4] else conformance(family) for family in BALANCED])
def test_the_loss_of_routers_and_its_gradients_are_the_librarys(tmp_path: Path, family: str) -> None:
    """The library's own loss, with `output_router_logits`, for rows padded on the left and on the right. The mask hides the last
    token of a row, which has no label; nothing attends to it.
    """
    model, weights = drawn(family, 0), {"router_aux_weight": 0.7, "router_z_weight": 0.03}
    folder, eager = saved(model, tmp_path), not class_of(model.kind)._supports_sdpa
    checkpoint = checkpoints.load(folder)
    given = [tokens(model.settings["vocab_size"], side) for side in (("right",) if eager else ("right", "left"))]
    token_bt, mask_bt = (np.concatenate([one[part] for one in given]) for part in ("ids", "mask"))
    target = np.where(mask_bt, np.maximum(token_bt, 1), 0)
    read, label, real = target[:, :-1], np.where(target[:, 1:] != 0, target[:, 1:], -100), target[:, :-1] != 0
    scored = torch.from_numpy(real & (label != -100))
    position = torch.from_numpy(np.maximum(np.cumsum(real, 1) - 1, 0))
    with all_in_float64():
        library = loaded(folder, model.kind, "eager" if eager else "sdpa")
        library.router_aux_loss_coef = weights["router_aux_weight"]
        labels = dict.fromkeys(("labels", "shift_labels"), torch.from_numpy(label))
        found = library(
            input_ids=torch.from_numpy(read), attention_mask=scored.long(), position_ids=position, output_router_logits=True, **labels
        )  # fmt: skip
        z = torch.cat([one.logsumexp(-1)[scored.flatten()] for one in found.router_logits]).square().mean()
        crossed = torch.nn.functional.cross_entropy(found.logits.flatten(0, 1), labels["labels"].flatten())
        balanced = crossed + weights["router_aux_weight"] * found.aux_loss
        wanted = balanced + weights["router_z_weight"] * z
        wanted.backward()
    np.testing.assert_allclose(found.loss.item(), balanced.item(), rtol=1e-6)  # the library's cross-entropy is in float32
    config = checkpoint.config.replace(padding_id=0, attention_dropout_rate=0.0, dropout_rate=0.0)
    own = parameters.nest({name: array.astype(np.float64) for name, array in checkpoint.parameters.items()})
    value = transformer.training_loss(own, config, None, target, **weights)
    np.testing.assert_allclose(value, wanted.item(), rtol=1e-12)
    got = parameters.flatten(transformer.training_loss_vjp(own, config, None, target, **weights, cotangent=np.ones(()))["parameters"])
    gradients = {part: parameter.grad.numpy() for part, parameter in library.named_parameters()}
    rows = FAMILIES[family].rows(config, map(FAMILIES[family].native, gradients))
    natives = {native.name: native for native in tables.natives(rows, config)}
    least = 1e-15 * max(np.abs(gradient).max() for gradient in gradients.values())
    for part, gradient in gradients.items():
        merged, size = tables.merged(natives[FAMILIES[family].native(part)], got), np.abs(gradient).max()
        np.testing.assert_allclose(merged, gradient, rtol=0, atol=max(1e-10 * size, least), err_msg=part)


@pytest.mark.parametrize("family", EACH)
def test_a_base_class_has_no_prefix_and_no_logits(tmp_path: Path, family: str) -> None:
    """And is written back unchanged."""
    model = drawn(family, 3)._replace(kind=BASES[family], dtype="bfloat16")
    folder = saved(model, tmp_path / "a")
    checkpoint, given = checkpoints.view(folder), tokens(model.settings["vocab_size"], "left")
    rows = {row.name for row in FAMILIES[family].table}
    assert rows >= {starred(name) for name in container.read(folder).tensors} and "logits.kernel" not in checkpoint.parameters
    with all_in_float64():
        assert_close(ours(checkpoint, model.kind, given), theirs(loaded(folder, model.kind), given), given["mask"])
    checkpoints.save(tmp_path / "b", checkpoint.config, checkpoint.parameters, "hugging-face", foreign=checkpoint.foreign)
    assert_same_bits(container.read(tmp_path / "b").tensors, container.read(folder).tensors)
    assert json.loads((tmp_path / "b" / "config.json").read_text()) == json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("family", EACH)
def test_a_decoder_that_came_from_no_folder_is_written_as_one(tmp_path: Path, family: str) -> None:
    """As its own family if that is known, otherwise as the first that can express it with the same results."""
    own = {"model_type": family, "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
    for seed, foreign in ((2, {}), (2, {"config.json": own}), (3, {"config.json": own})):
        model, new = drawn(family, seed), tmp_path / f"{seed}{len(foreign)}"
        first = checkpoints.load(saved(model._replace(dtype="float32"), tmp_path / f"a{new.name}"))
        checkpoints.save(new, first.config, first.parameters, "hugging-face", foreign=foreign)
        said = json.loads((new / "config.json").read_text())
        assert not foreign or said["model_type"] == family
        assert_same_bits(checkpoints.load(new).parameters, first.parameters)
        given = tokens(model.settings["vocab_size"], "left")
        with all_in_float64():
            wanted = theirs(loaded(new, said["architectures"][0]), given)
        assert_close(ours(first, model.kind, given), wanted, given["mask"])


HEADS = {"ForSequenceClassification": "sequence_classifier", "ForTokenClassification": "token_classifier",
         "ForQuestionAnswering": "question_answering_head"}  # fmt: skip


@pytest.mark.parametrize("family", EACH)
def test_other_heads_are_refused_by_their_names_and_can_be_left_out(tmp_path: Path, family: str) -> None:
    for kind, heads in FAMILIES[family].classes.items():
        if not heads or heads == ("language_head",):
            continue
        (head,) = heads
        assert HEADS[kind[kind.index("For") :]] == head
        library, folder, base = made(drawn(family, 0)._replace(kind=kind)), tmp_path / kind, tmp_path / f"{kind}_base"
        library.save_pretrained(folder)
        getattr(library, library.base_model_prefix).save_pretrained(base)
        several: tuple[dict[str, Any], ...] = ({}, {"architectures": ...})
        for entries in several:
            with pytest.raises(CheckpointError, match=rf"{head}.*--ignore {head}"):
                checkpoints.load(edit(folder, **entries))
            assert checkpoints.load(folder, ignore=[head]).config == checkpoints.load(base).config
        assert_same_bits(checkpoints.load(folder, ignore=[head]).parameters, checkpoints.load(base).parameters)


# --- equivalent folders


def plain(family: str, **settings: Any) -> Drawn:
    found = drawn(family, 0)
    rope = {"rope_parameters": settings.pop("rope_parameters", None)}
    return found._replace(dtype="float32", settings=found.settings | rope | settings)


LONG = {"short_factor": [1.5, 2.0, 3.0, 4.0], "long_factor": [2.0, 5.0, 6.0, 9.0]}
# entries of earlier library versions, and the fields they decide
OLDER: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.5}, "rope_theta": 90.0},
     {"rotary_base": 90.0, "rotary_scaling": RotaryScaling(kind="linear", factor=2.5)}),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "type": "linear", "factor": 2.5}, "max_position_embeddings": 11},
     {"rotary_scaling": RotaryScaling(kind="dynamic", factor=2.5, original_length=11)}),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4.0},
               "original_max_position_embeddings": 64},
     {"rotary_scaling": RotaryScaling(
         kind="llama3", factor=8.0, low_frequency_factor=1, high_frequency_factor=4.0, original_length=64)}),
    ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, "rope_theta": 1e6},
     {"rotary_base": 1e6, "rotary_scaling": RotaryScaling(
         kind="yarn", factor=4.0, original_length=32, beta_fast=32, beta_slow=1, truncate=True, attention_factor=0.1 * np.log(4) + 1)}),
    ("phi3", {"rope_scaling": {"type": "su", **LONG}, "original_max_position_embeddings": 16, "max_position_embeddings": 64},
     {"rotary_scaling": RotaryScaling(
         kind="longrope", original_length=16, short_factors=tuple(LONG["short_factor"]), long_factors=tuple(LONG["long_factor"]),
         attention_factor=(1 + np.log(4) / np.log(16)) ** 0.5)}),
    ("phi3", {"rope_scaling": {"type": "yarn", "short_factor": [1.5, 2.0], "long_factor": [3.0, 4.0]}, "partial_rotary_factor": 0.5,
              "original_max_position_embeddings": 16, "max_position_embeddings": 16},
     {"rotary_fraction": 0.5, "rotary_scaling": RotaryScaling(
         kind="longrope", original_length=16, short_factors=(1.5, 2.0), long_factors=(3.0, 4.0), attention_factor=1.0)}),
    ("gemma3_text", {"rope_theta": 900.0, "rope_local_base_freq": 70.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                     "layer_types": ..., "sliding_window_pattern": 3, "query_pre_attn_scalar": 5},
     {"rotary_base": 900.0, "local_rotary_base": 70.0, "rotary_scaling": RotaryScaling(kind="linear", factor=8.0),
      "local_rotary_scaling": RotaryScaling(), "layer_pattern": ("local", "local", "global"), "score_scale": 5**-0.5}),
    ("gemma", {"hidden_act": "gelu", "hidden_activation": None, "head_dim": 6}, {"activation": "gelu_tanh"}),
    ("smollm3", {"no_rope_layers": [1, 0, 1], "layer_types": ..., "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 28},
     {"rotary_pattern": (True, False), "layer_pattern": ("global", "local"), "window": 3}),
    ("qwen3", {"layer_types": ..., "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2},
     {"layer_pattern": ("global", "global", "local"), "window": 3}),
    ("mistral", {"sliding_window": ...}, {"layer_pattern": ("local",), "window": 4096}),
    ("gemma3_text", {}, {"rotary_base": 1e6, "local_rotary_base": 1e4}), ("smollm3", {}, {"rotary_base": 2e6, "local_rotary_base": 2e6}),
)  # fmt: skip


def close(values: dict[str, Any]) -> dict[str, Any]:
    """Returns values that compare equal up to the last bits of numbers."""
    return {name: value if isinstance(value, str) else pytest.approx(value) for name, value in values.items()}


@pytest.mark.parametrize(("family", "entries", "fields"), OLDER, ids=lambda value: value if isinstance(value, str) else None)
def test_entries_of_earlier_versions(tmp_path: Path, family: str, entries: dict[str, Any], fields: dict[str, Any]) -> None:
    """The fields they decide, and the library's results, except for the one that its current version cannot read."""
    model = plain(family, **({"hidden_size": 8 * 6, "num_attention_heads": 6, "head_dim": 8} if family == "phi3" else {}))
    folder = edit(saved(model, tmp_path / "a"), rope_parameters=..., **{"rope_scaling": None, **entries})
    checkpoint = checkpoints.load(folder)
    for name, value in fields.items():
        got = getattr(checkpoint.config, name)
        got, value = (each.to_dict() if isinstance(each, RotaryScaling) else each for each in (got, value))
        assert got == (pytest.approx(value) if isinstance(value, float) else value if not isinstance(value, dict) else close(value)), name
    if entries.get("rope_scaling", {}) and (entries["rope_scaling"] or {}).get("type") == "su":
        edit(folder, rope_scaling={**entries["rope_scaling"], "type": "longrope"})
    given = tokens(model.settings["vocab_size"], "left")
    with all_in_float64():
        assert_close(ours(checkpoint, model.kind, given), theirs(loaded(folder, model.kind), given), given["mask"])


# --- size


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "smollm3"])
def test_layers_that_are_claimed_and_not_there_take_no_time_and_no_memory(tmp_path: Path, family: str) -> None:
    folder, count = saved(drawn(family, 0), tmp_path / "a"), 10**9
    edit(folder, num_hidden_layers=count, layer_types=..., no_rope_layers=..., no_rope_layer_interval=count)
    if family != "smollm3":
        edit(folder, no_rope_layer_interval=...)
    if family == "gemma3_text":
        edit(folder, sliding_window_pattern=count)
    with pytest.raises(CheckpointError, match=rf"config\.json.*num_hidden_layers {count}.*3") as caught:
        checkpoints.load(folder)
    assert len(caught.value.problems) == 1
