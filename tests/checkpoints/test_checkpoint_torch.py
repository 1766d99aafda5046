"""State dicts of torch.nn.Transformer: the module's own logits, bit-exact round trips, and every kind of error."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_models import CHOICES, CONFIG, NAMES, QUERY, SIZES, TIED, assert_same_bits, random_parameters, state_of, torch_model
from messages import mentions

from reference_numpy import TransformerConfig, parameters, preset, transformer
from rosettaformer.common.extras import MissingBackend
from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import Checkpoint, CheckpointError, torch_transformer
from rosettaformer.files.checkpoints.strict import DTYPES

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but"),  # nn.Transformer cannot disable it
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage"),
]


def to_torch(state: dict[str, np.ndarray]) -> dict[str, Any]:
    from impl_torch import weights

    return {name: weights.from_numpy(array) for name, array in state.items()}


def torch_logits(model: Any, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns the module's own output: its embedding times sqrt(d), sinusoidal positions, padding and causal masks."""
    torch = pytest.importorskip("torch")
    source_ids, target_ids = torch.from_numpy(source), torch.from_numpy(target)
    width = model.source.embedding_dim
    position = torch.arange(50, dtype=torch.float64)[:, None]
    angle = position / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    table = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)

    def embed(module: Any, token: Any) -> Any:
        return module(token) * width**0.5 + table[: token.shape[1]]

    with torch.no_grad():
        x = model.transformer(
            embed(model.source, source_ids), embed(model.target, target_ids),
            tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.float64).bool(),
            src_key_padding_mask=source_ids == 0, tgt_key_padding_mask=target_ids == 0, memory_key_padding_mask=source_ids == 0,
        )  # fmt: skip
        return model.generator(x).numpy()


def tokens(config: TransformerConfig) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids with ragged right padding and none inside."""
    rng = np.random.default_rng(0)
    source, target = rng.integers(1, config.source_vocabulary, (3, 11)), rng.integers(1, config.target_vocabulary, (3, 7))
    source[1, 6:], source[2, 9:], target[0, 5:] = 0, 0, 0
    return source, target


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_imported_parameters_give_the_modules_own_logits(norm_first: bool, activation: str) -> None:
    model = torch_model(96, 4, (3, 2), 160, norm_first=norm_first, activation=activation, layer_norm_eps=1e-6).double()
    choices = {"heads": 4, "epsilon": 1e-6, "norm_placement": "pre" if norm_first else "post"}
    choices["activation"] = "relu" if activation == "relu" else "gelu_erf"
    checkpoint = torch_transformer.import_state_dict(state_of(model), settings=CHOICES | choices, ignore=["pe"], **NAMES)
    config = checkpoint.config
    assert (config.encoder_layers, config.decoder_layers, config.model_width, config.feed_forward_width) == (3, 2, 96, 160)
    assert (config.final_norm, config.attention_bias, config.output_bias, config.key_size) == (True, True, True, 24)
    source, target = tokens(config)
    ours = transformer.transformer(parameters.nest(checkpoint.parameters), config, source, target)[target != 0]
    theirs = torch_logits(model, source, target)[target != 0]
    assert np.abs(theirs).max() > 0.1
    assert np.abs(ours - theirs).max() <= 1e-11 * np.abs(theirs).max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tie", [False, True])
def test_torch_round_trip_is_bit_exact_and_loads_strictly(dtype: str, tie: bool) -> None:
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


def imported(state: Mapping[str, Any], settings: dict[str, Any] = CHOICES, ignore: Sequence[str] = ("pe",), **options: Any) -> Checkpoint:
    return torch_transformer.import_state_dict(state, settings=settings, ignore=ignore, **(NAMES | options))


def import_problems(state: Mapping[str, Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        imported(state, *arguments, **options)
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize("prefix", ["", "transformer.", "module.model.transformer."])
def test_the_prefix_is_found(prefix: str) -> None:
    state = state_of(torch_model())
    moved = {key.replace("transformer.", prefix, 1) if key.startswith("transformer.") else key: array for key, array in state.items()}
    expected = imported(state)
    for given in (None, prefix):
        found = imported(moved, prefix=given)
        assert found.config == expected.config
        assert_same_bits(found.parameters, expected.parameters)
    assert mentions(import_problems(moved, prefix=f"{prefix}x."), f"torch.nn.Transformer … '{prefix}x.'")


def test_two_transformers_need_a_prefix() -> None:
    state = state_of(torch_model())
    twin = {key.replace("transformer.", "other."): array for key, array in state.items() if key.startswith("transformer.")}
    assert mentions(import_problems(state | twin), "torch.nn.Transformer … --name prefix=NAME … 'other.', 'transformer.'")
    assert imported(state | twin, prefix="transformer.", ignore=["pe", *twin]).config.encoder_layers == 2


KEY, PACKED = "transformer.encoder.layers.1.linear2.weight", "transformer.encoder.layers.0.self_attn.in_proj_weight"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (KEY, None, f"missing {KEY} of shape (12, 20)"),
        (KEY, lambda w: w.T, f"{KEY} … shape (20, 12) … shape (12, 20)"),
        (KEY, lambda w: w.astype(np.float64), f"{KEY} … float32 … float64"),
        (KEY, lambda w: np.where(np.arange(w.size).reshape(w.shape), w, np.nan), f"{KEY} … 1 NaN"),
        (PACKED, lambda w: w[:-1], f"{PACKED} must have shape (36, 12); got (35, 12)"),
        ("source.weight", lambda w: w.T, "source.weight … shape (12, 37) … shape (37, 12)"),
        ("more", lambda _: np.zeros(3, np.float32), "more … nn.Transformer … --ignore"),
        ("generator.weight", lambda w: w + 1, "generator.weight … source.weight"),
    ],
)
def test_a_damaged_state_dict(name: str, change: Callable[[Any], np.ndarray] | None, message: str) -> None:
    tied = name == "generator.weight"
    state = state_of(torch_model(vocabularies=(37, 37), tie=tied))
    damaged = {key: array for key, array in state.items() if key != name} | ({name: change(state.get(name))} if change else {})
    text = import_problems(damaged, CHOICES | {"share_embeddings": tied, "tie_logits": tied})
    assert mentions(text, message) and "\n" not in text, text


def test_what_the_shapes_cannot_tell_must_be_told() -> None:
    state = state_of(torch_model())
    text = import_problems(state, {})
    assert mentions(text, "scale_embedding … norm_placement")
    assert "dropout_rate" in text and "feed_forward_width" not in text
    # the preset's eight heads are for width 512: at width 12 they would be a guess
    text = import_problems(state, {}, preset="nn_transformer")
    assert "heads" in text and "\n" not in text
    assert imported(state, {"heads": 3}, preset="nn_transformer").config == CONFIG
    assert imported(state_of(torch_model(512, 8, (1, 1))), {}, preset="nn_transformer").config.heads == 8


def test_contradictions_are_listed_at_once() -> None:
    state = state_of(torch_model())
    settings = {"heads": 3, "model_width": 16, "encoder_layers": 5, "key_size": 7, "output_bias": False}
    text = import_problems(state, settings, preset="paper_base")
    for message in (
        "model_width … 16 … --set … 12",
        "encoder_layers … 5 … --set … 2",
        "output_bias … False … --set … True",
        "final_norm … False … paper_base … True",
        "attention_bias … False … paper_base … True",
        "key_size … 7 … --set … 4",
    ):
        assert mentions(text, message)
    for heads in (5, 0, "three"):
        message = f"heads … model_width=12; got {heads!r}"
        assert mentions(import_problems(state, CHOICES | {"heads": heads}), message)
    assert "activation" in import_problems(state, CHOICES | {"activation": "swish"})
    text = import_problems(state, CHOICES | {"share_embeddings": True})
    assert "equal vocabularies" in text


def test_layouts_that_cannot_be_expressed() -> None:
    state = state_of(torch_model(bias=False))
    assert "missing transformer.encoder.layers.0.linear1.bias of shape (20,)" in import_problems(state)
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
        "torch.nn.Transformer needs query_key_value_bias=True",
        "torch.nn.Transformer needs attention_output_bias=True",
    ]
    with pytest.raises(ValueError, match=r"named same\.weight"):
        torch_transformer.export_state_dict(CONFIG, random_parameters(CONFIG), source_embedding="same", target_embedding="same")


def test_names_around_the_transformer() -> None:
    state = state_of(torch_model())
    text = import_problems(state, source_embedding="sauce", ignore=["pe", "pes"])
    assert mentions(text, "--ignore pes: … (nearest: pe)") and mentions(text, "source_embedding=sauce: … tensor")
    assert mentions(import_problems(state, ignore=()), "pe … nn.Transformer")
    text = import_problems(state, source_embedding=None)
    assert mentions(text, "--name source_embedding=NAME … nn.Transformer … source.weight")
    text = import_problems(state, logits=None)
    assert mentions(text, "missing logits.weight … --name logits=NAME … shape (31, 12)") and "unexpected generator.weight" in text
    text = import_problems(state, target_embedding="source")
    assert mentions(text, "share_embeddings … False")
    tied = state_of(torch_model(vocabularies=(37, 37), tie=True))
    settings = CHOICES | {"share_embeddings": True, "tie_logits": True}
    once = {key: array for key, array in tied.items() if key not in ("target.weight", "generator.weight", "generator.bias")}
    found = imported(once, settings, target_embedding=None, logits=None)
    assert found.config.output_bias is False and set(found.parameters) == set(parameters.axes(found.config))


def test_a_transformer_alone() -> None:
    state = {key: array for key, array in state_of(torch_model()).items() if key.startswith("transformer.")}
    nameless = dict.fromkeys(NAMES)
    assert "--fresh-embeddings SEED" in import_problems(state, ignore=(), **nameless)
    assert "source_vocabulary, target_vocabulary, output_bias" in import_problems(state, ignore=(), fresh_embeddings=4, **nameless)
    settings = CHOICES | {"source_vocabulary": 37, "target_vocabulary": 31, "output_bias": True}
    found = imported(state, settings, ignore=(), fresh_embeddings=4, **nameless)
    fresh = parameters.initialise(found.config, 4, np.float32)
    for name in ("source_embedding.table", "target_embedding.table", "logits.kernel", "logits.bias"):
        np.testing.assert_array_equal(found.parameters[name], fresh[name])
    assert found.parameters[QUERY].dtype == np.float32 and not np.array_equal(found.parameters[QUERY], fresh[QUERY])


def test_an_encoder_alone() -> None:
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
def test_state_dict_files(tmp_path: Path, suffix: str, dtype: str) -> None:
    pytest.importorskip("torch")
    arrays = random_parameters(TIED, dtype)
    path = tmp_path / f"state{suffix}"
    checkpoints.save(path, TIED, arrays, "torch-transformer", **NAMES)
    loaded = checkpoints.load(
        path,
        "torch-transformer",
        preset="feed_forward_dropout",
        settings={"heads": 3},
        **NAMES | {"logits": None},
        ignore=["generator.weight"],
    )
    assert loaded.config == TIED and os.listdir(tmp_path) == [path.name]
    assert_same_bits(loaded.parameters, arrays)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("evil",))


@pytest.mark.parametrize("content", ["code", "garbage", "empty", "list", "nested"])
def test_a_bad_pickle_runs_nothing_and_is_a_clean_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.pt"
    if content in ("garbage", "empty"):
        path.write_bytes(b"garbage" * 9 if content == "garbage" else b"")
    else:
        state = {key: torch.from_numpy(array) for key, array in state_of(torch_model()).items()}
        torch.save({"code": {"a": Evil()}, "list": [1, 2], "nested": {"epoch": 1, "model": state}}[content], path)
    with pytest.raises(CheckpointError) as caught:
        torch_transformer.view(path)
    wanted = {
        "list": "state dict",
        "nested": "--key model",
        "empty": "empty",
    }
    assert wanted.get(content, "tensors") in str(caught.value)
    assert not (tmp_path / "evil").exists()


def test_a_missing_torch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "a.pt").write_bytes(b"garbage")
    with pytest.raises(MissingBackend, match=r"\[torch\]'"):
        torch_transformer.view(tmp_path / "a.pt")
    with pytest.raises(MissingBackend):
        torch_transformer.save(tmp_path / "b.pt", CONFIG, random_parameters(CONFIG))
    assert os.listdir(tmp_path) == ["a.pt"]
    path = tmp_path / "a.safetensors"
    torch_transformer.save(path, CONFIG, random_parameters(CONFIG))
    assert torch_transformer.view(path, preset="nn_transformer", settings={"heads": 3}).config == CONFIG
