"""Encoder-decoders of transformers: its numbers in float64, and files in both directions."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import FOUR, answerer
from checkpoint_models import assert_same_bits
from decoder_folders import all_in_float64, class_of
from hugging_face_folders import Drawn, made
from kinds import conformance
from model_folders import edit

from reference_numpy import TransformerConfig, parameters, positional_encoding, transformer
from reference_numpy.values import Text
from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import Checkpoint, CheckpointError, container
from rosettaformer.files.checkpoints.hugging_face import FAMILIES
from rosettaformer.judge.case import Case

pytest.importorskip("transformers", reason="transformers is not installed")
torch = pytest.importorskip("torch")

KINDS = {"marian": "MarianMT", "pegasus": "Pegasus", "bart": "Bart", "mbart": "MBart", "m2m_100": "M2M100"}
ACTS = ("gelu", "relu", "swish", "gelu_new", "silu")
LONG = 700
FLIPPED: dict[str, tuple[Any, ...]] = {
    "d_model": (23, "24"), "encoder_layers": (0, 3, "2"), "decoder_layers": (0, 1), "encoder_attention_heads": (2, 0),
    "decoder_attention_heads": (2,), "encoder_ffn_dim": (7,), "decoder_ffn_dim": (7,), "activation_function": ("relu", "mish"),
    "scale_embedding": (True, False, None), "dropout": (0.5, 1.5), "attention_dropout": (0.5,), "activation_dropout": (0.5,),
    "tie_word_embeddings": (False, None), "vocab_size": (40,), "decoder_vocab_size": (40,), "is_decoder": (True,),
    "share_encoder_decoder_embeddings": (False, 3), "pad_token_id": (3, None), "is_encoder_decoder": (False,),
    "num_hidden_layers": (2, 7), "encoder_layerdrop": (0.3,), "normalize_before": (True,),
    "init_std": (3.0,), "forced_eos_token_id": (5,), "add_cross_attention": (True,), "static_position_embeddings": (True,),
}  # fmt: skip


def drawn(family: str, seed: int) -> Drawn:
    """Draws a model: other numbers of layers on the two sides, scaled or not, tied or not, every dtype, one shard or several."""
    rng = np.random.default_rng([seed, *map(ord, family)])
    heads, size, vocabulary, padding = *(int(rng.integers(2, 6)) for _ in range(2)), int(rng.integers(20, 60)), seed % 4
    flag = lambda: bool(rng.integers(2))  # noqa: E731
    width, hidden = heads * size + (family == "m2m_100" and 2 * heads), int(rng.integers(5, 30))
    rates = [float(rate) for rate in rng.uniform(0, 0.5, 3)]
    settings: dict[str, Any] = {
        "vocab_size": vocabulary, "d_model": width, "encoder_layers": int(rng.integers(1, 4)), "decoder_layers": int(rng.integers(1, 4)),
        "encoder_attention_heads": heads, "decoder_attention_heads": heads, "encoder_ffn_dim": hidden, "decoder_ffn_dim": hidden,
        "activation_function": ACTS[seed % len(ACTS)], "scale_embedding": flag(), "max_position_embeddings": LONG,
        "dropout": rates[0], "attention_dropout": rates[1], "activation_dropout": rates[2], "pad_token_id": padding,
        "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "tie_word_embeddings": seed % 5 != 4,
    }  # fmt: skip
    if family == "marian" and seed % 2:
        settings |= {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": vocabulary + 3}
    kind = KINDS[family] + ("Model" if family == "marian" else "ForConditionalGeneration")
    dtype = ("float64", "bfloat16", "float32", "float16")[seed % 4]
    return Drawn(kind, settings, dtype, {"max_shard_size": "2KB"} if seed % 4 == 1 else {})


def saved(model: Drawn, folder: Path) -> Path:
    """Saves a random model whose fixed positions stay what they are."""
    result = made(model)
    _fix(result, lambda module: module.create_weight() if hasattr(module, "create_weight") else module.weights)
    result.save_pretrained(folder, **model.options)
    return folder


def _fix(model: Any, positions: Callable[[Any], Any]) -> None:
    for name, module in model.named_modules():
        if name.endswith("embed_positions") and "Learned" not in type(module).__name__:
            (module.weights if hasattr(module, "make_weights") else module.weight).data.copy_(positions(module))


def _exact(module: Any) -> Any:
    """Returns the positions of a module in float64."""
    layout, own = ("tensor2tensor", module.weights) if hasattr(module, "make_weights") else ("halves", module.weight)
    return torch.from_numpy(positional_encoding.positional_encoding(np.arange(own.shape[0]), own.shape[1], np.float64, layout))


def loaded(folder: Path, kind: str) -> Any:
    """Loads the library's model in float64, also its sinusoids, which it rounds to float32."""
    with all_in_float64():
        result, said = class_of(kind).from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager", output_loading_info=True
        )  # fmt: skip
    assert not any(said.values()), said
    _fix(result, _exact)
    return result.eval()


def texts(config: TransformerConfig, family: str, padding: int, side: str, lengths: tuple[int, int]) -> dict[str, np.ndarray]:
    """Returns a source and a target in rows of several lengths, padded on that side; the padding id is only at padding."""
    rng, found = np.random.default_rng(len(side)), dict[str, np.ndarray]()
    for name, axes, vocabulary, length in zip(
        ("source", "target"), ("bs", "bt"), (config.source_vocabulary, config.target_vocabulary), lengths, strict=True
    ):
        real = np.full(4, length) if side == "none" else np.maximum(length - np.array([0, 3, 2, 5]), 1)
        mask = np.arange(length) < real[:, None]
        mask = mask[:, ::-1].copy() if side == "left" else mask
        ids = rng.integers(0, vocabulary, mask.shape)
        found[name] = np.where(mask, np.where(ids == padding, (padding + 1) % vocabulary, ids), padding)
        found[f"{name}_mask_{axes}"] = mask
    return found


def theirs(model: Any, given: dict[str, np.ndarray]) -> np.ndarray:
    named = {"input_ids": "source", "attention_mask": "source_mask_bs"}
    named |= {"decoder_input_ids": "target", "decoder_attention_mask": "target_mask_bt"}
    with torch.inference_mode():
        found = model(**{name: torch.from_numpy(given[own].astype(np.int64)) for name, own in named.items()}, use_cache=False)
    return found.logits.numpy()


def ours(checkpoint: Checkpoint, given: dict[str, np.ndarray], backend: str = "numpy", component: str = "transformer", **more: Any) -> Any:
    values = {name: array.astype(np.float64) for name, array in checkpoint.parameters.items()}
    case = Case("folder", component, checkpoint.config, given | more, values)
    return answerer(backend)(case.at("float64"))["output"]


def assert_close(got: np.ndarray, wanted: np.ndarray, mask: np.ndarray) -> None:
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got[mask], wanted[mask], rtol=0, atol=1e-11 * np.abs(wanted).max())


EACH = [(family, range(2)) for family in KINDS] + [conformance((family, range(2, 10))) for family in KINDS]


@pytest.mark.parametrize("backend", [*FOUR[:2], *map(conformance, FOUR[2:])])
@pytest.mark.parametrize(("family", "seeds"), EACH, ids=str)
def test_a_folder_gives_the_librarys_own_numbers(tmp_path: Path, family: str, seeds: range, backend: str) -> None:
    """Texts of different lengths, padded on either side."""
    for seed in seeds:
        model = drawn(family, seed)
        folder = saved(model, tmp_path / f"{seed}")
        checkpoint, library = checkpoints.load(folder), loaded(folder, model.kind)
        for side, lengths in (("none", (7, 5)), ("right", (9, 7)), ("left", (8, 11))):
            given = texts(checkpoint.config, family, model.settings["pad_token_id"], side, lengths)
            assert_close(ours(checkpoint, given, backend), theirs(library, given), given["target_mask_bt"])


@pytest.mark.parametrize("backend", [FOUR[0], *map(conformance, FOUR[1:])])
@pytest.mark.parametrize("family", KINDS)
def test_long_texts_and_cached_steps_give_the_librarys_numbers(tmp_path: Path, family: str, backend: str) -> None:
    """The library's own cache, too."""
    model = drawn(family, 0)
    folder = saved(model, tmp_path)
    checkpoint, library = checkpoints.load(folder), loaded(folder, model.kind)
    given = texts(checkpoint.config, family, model.settings["pad_token_id"], "none", (LONG, LONG - 2))
    given = {name: array[:1] for name, array in given.items()}
    wanted = theirs(library, given)
    assert_close(ours(checkpoint, given, backend), wanted, given["target_mask_bt"])
    values = parameters.nest({name: array.astype(np.float64) for name, array in checkpoint.parameters.items()})
    memory_bsd = transformer.encode(values, checkpoint.config, Text(given["source"], given["source_mask_bs"]))
    told = {"memory_bsd": memory_bsd, "source_mask_bs": given["source_mask_bs"], "splits": (LONG - 6, 1, 1, 2)}
    steps = ours(checkpoint, {"target": given["target"]}, backend, "decode_in_steps", **told)
    assert_close(steps, wanted, given["target_mask_bt"])
    with torch.inference_mode():
        ids, cache, found = torch.from_numpy(given["target"]), None, []
        encoded = library.get_encoder()(torch.from_numpy(given["source"]))
        for end, length in zip(np.cumsum(told["splits"]), told["splits"], strict=True):
            step = library(encoder_outputs=encoded, decoder_input_ids=ids[:, end - length : end], past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            found.append(step.logits.numpy())
    assert_close(np.concatenate(found, axis=1), wanted, given["target_mask_bt"])


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("seeds", [range(5), conformance(range(5, 10))], ids=str)
def test_a_folder_that_is_written_again_has_the_same_tensors(tmp_path: Path, family: str, seeds: range) -> None:
    """And entries, in the file's names; with only the config, it reads as the same config."""
    for seed in seeds:
        model = drawn(family, seed)
        folder = saved(model, tmp_path / f"{seed}")
        first = checkpoints.load(folder)
        checkpoints.save(tmp_path / f"{seed}b", first.config, first.parameters, "hugging-face", foreign=first.foreign)
        given, again = (dict(container.read(path).tensors) for path in (folder, tmp_path / f"{seed}b"))
        if not model.settings["tie_word_embeddings"] and "model.shared.weight" in given:  # a tensor that nothing reads
            assert again["model.shared.weight"].shape == given.pop("model.shared.weight").shape
            del again["model.shared.weight"]
        assert_same_bits(dict(sorted(again.items())), dict(sorted(given.items())))
        for name in ("config.json", "generation_config.json"):
            assert json.loads((tmp_path / f"{seed}b" / name).read_text()) == json.loads((folder / name).read_text())
        loaded(tmp_path / f"{seed}b", model.kind)
        checkpoints.save(tmp_path / f"{seed}c", first.config, first.parameters, "hugging-face")
        assert checkpoints.load(tmp_path / f"{seed}c").config == first.config
        assert_same_bits(checkpoints.load(tmp_path / f"{seed}c").parameters, first.parameters)


@pytest.mark.parametrize("family", KINDS)
def test_what_older_folders_hold(tmp_path: Path, family: str) -> None:
    """Every tied table under its own name, fixed positions, and entries under two names; a table that differs is a problem."""
    model = drawn(family, 0)
    folder = saved(model, tmp_path)
    first = checkpoints.load(folder)
    tensors = {name: np.array(array) for name, array in container.read(folder).tensors.items()}
    shared = tensors["model.shared.weight"]
    copies = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    place, more = "model.encoder.embed_positions.weight", dict[str, np.ndarray]()
    if first.config.positions == "sinusoidal":
        given = np.arange(LONG), first.config.model_width, np.float32, first.config.sinusoid_layout
        more = {place: positional_encoding.positional_encoding(*given)}
    (folder / "model.safetensors").unlink()
    container.write(folder / "model.safetensors", tensors | dict.fromkeys(copies, shared) | more, {"format": "pt"})
    edit(folder, num_hidden_layers=model.settings["encoder_layers"], normalize_before=True)
    found = checkpoints.load(folder)
    assert found.config == first.config
    assert_same_bits(found.parameters, first.parameters)
    for name in (*copies, *more):
        (folder / "model.safetensors").unlink()
        other = {name: more.get(name, shared) + 1}
        container.write(folder / "model.safetensors", tensors | dict.fromkeys(copies, shared) | other, {"format": "pt"})
        with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
            checkpoints.load(folder)


@pytest.mark.parametrize("family", KINDS)
def test_the_base_class_has_no_logits(tmp_path: Path, family: str) -> None:
    model = drawn(family, 0)._replace(kind=KINDS[family].removesuffix("MT") + "Model")
    folder = saved(model, tmp_path / "a")
    found = checkpoints.load(folder)
    assert not any(name.startswith("logits") for name in found.parameters)
    checkpoints.save(tmp_path / "b", found.config, found.parameters, "hugging-face", foreign=found.foreign)
    given, again = (dict(container.read(path).tensors) for path in (folder, tmp_path / "b"))
    assert {name for name in given.keys() ^ again.keys() if "embed_positions" not in name} == set()


def _flips(family: str, said: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, values in FLIPPED.items():
        if name in said or name in ("num_hidden_layers", "normalize_before", "static_position_embeddings", "is_decoder"):
            yield from ((name, value) for value in values if value != said.get(name))


@pytest.mark.parametrize("family", KINDS)
def test_an_entry_is_honored_or_refused_by_name(tmp_path: Path, family: str) -> None:
    """Flipped, it gives the library's results, or a problem names it."""
    model = drawn(family, 0)
    folder = saved(model, tmp_path / "a")
    said = json.loads((folder / "config.json").read_text())
    honored = set[str]()
    for name, value in _flips(family, said):
        edit(folder, **{name: value})
        try:
            found = checkpoints.load(folder)
        except CheckpointError as error:
            assert any(name in problem or "embed_tokens" in problem for problem in error.problems), (name, value, error)
        else:
            honored.add(name)
            padding = value if name == "pad_token_id" and value is not None else model.settings["pad_token_id"]
            given = texts(found.config, family, padding, "right", (9, 7))
            wanted = theirs(loaded(folder, model.kind), given)
            assert_close(ours(found, given), wanted, given["target_mask_bt"])
        edit(folder, **{name: said.get(name, ...)})
    assert {"activation_function", "scale_embedding", "dropout", "encoder_layerdrop"} <= honored
    refused = {"d_model", "encoder_layers", "decoder_ffn_dim", "is_encoder_decoder", "decoder_attention_heads", "vocab_size", "is_decoder"}
    assert not refused & honored, refused & honored
    assert FAMILIES[family].model_type == made(model).config.model_type
