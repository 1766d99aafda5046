"""New random models of every family: transformers loads them, every weight matters, and their sizes hide no bug."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from checkpoint_models import assert_same_bits
from decoder_folders import all_in_float64, loaded
from hugging_face_folders import assert_close, ours, theirs
from invoke import refused, succeeded
from kinds import conformance, every
from messages import mentions

from reference_numpy import TransformerConfig
from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import container
from rosettaformer.files.checkpoints.hugging_face import FAMILIES, entries, new, spelling
from rosettaformer.files.checkpoints.strict import DTYPES, numpy_dtype
from rosettaformer.judge.case import Case
from rosettaformer.judge.expectation import components, tolerance
from rosettaformer.judge.suite.like import LONG, MEDIUM, SHORT
from rosettaformer.judge.suite.like_folders import cases_of

FAR = 1000  # times the tolerance of float32
ENCODERS = [family for family, found in FAMILIES.items() if found.fixed.get("decoder_layers") == 0]
ALONE = [family for family, found in FAMILIES.items() if not found.encoder_decoder]
# the case in which every weight matters
SEEN = dict.fromkeys(ENCODERS, "masked_language_logits/short") | {"bert": "masked_language_logits/two_segments"}
SEEN |= {"glm4_moe": "transformer/medium"}  # few tokens choose another expert without the bias of one layer
SEEN |= {family: "transformer/medium" for family in FAMILIES if family not in ALONE}  # few tokens show a bias of cross-attention
SIZES = pytest.mark.parametrize("size", ["tiny", "small", "deep"])


def _prompts(config: TransformerConfig, length: int) -> dict[str, np.ndarray]:
    """Returns two rows of random tokens, the second left-padded; with segments for an encoder."""
    rng, first = np.random.default_rng(length), config.position_offset
    ids = rng.integers(first or 1, config.source_vocabulary, (2, length))
    mask = np.arange(length) >= np.array([[0], [length // 3]])
    ids = np.where(mask, ids, first - 1) if first else ids  # the padding id, if it marks where a text begins
    return {"ids": ids, "mask": mask} | ({"segments": rng.integers(0, config.segments, ids.shape)} if config.segments else {})


@pytest.mark.parametrize(("family", "lengths"), [("gpt2", (SHORT,)), *(conformance((family, (SHORT, LONG))) for family in ALONE)], ids=str)
def test_the_library_loads_it_and_gives_the_references_numbers(tmp_path: Path, family: str, lengths: tuple[int, ...]) -> None:
    """Strictly; logits, hidden states and attention maps in float64, for short texts and for those beyond 500 tokens."""
    pytest.importorskip("transformers")
    new.write(family, tmp_path / "a", dtype="float64")
    checkpoint = checkpoints.load(tmp_path / "a", "hugging-face")
    kind = checkpoint.foreign["config.json"]["architectures"][0]
    library = loaded(tmp_path / "a", kind)
    for length in lengths:
        given = _prompts(checkpoint.config, length)
        with all_in_float64():
            wanted = theirs(library, given)
        assert_close(ours(checkpoint, kind, given), wanted, given["mask"], 1e-9)


def _neutral(name: str, array: np.ndarray, config: TransformerConfig) -> np.ndarray:
    """Returns the values that neutralize a parameter; for kernels and tables, permuted rows."""
    kind = name.rpartition(".")[2]
    if kind == "scale":
        return np.full_like(array, not config.norm_one_plus_scale)
    return np.zeros_like(array) if kind in ("bias", "offset") or len(array) == 1 else np.roll(array, 1, axis=0)


def _unseen(name: str, config: TransformerConfig) -> bool:
    """A key's bias adds the same to all scores of a query, unless the keys rotate."""
    return name.endswith("key.bias") and config.positions != "rotary"


def test_entries_of_version_4_say_the_same() -> None:
    for name in new.names():
        family, said = new.family_of(name), new._said(name, "tiny", {})
        if name == "olmo3":  # its kinds of layers have one base in version 4
            with pytest.raises(ValueError, match="rope_parameters"):
                spelling.older(family, said)
            continue
        found = spelling.older(family, said)
        assert "rope_parameters" not in found
        assert ("rope_theta" in found or "global_rope_theta" in found) == ("rope_parameters" in said)
        assert entries.config_of(family, found, ()) == entries.config_of(family, said, ())


@pytest.mark.parametrize("family", every(4, FAMILIES))
def test_every_weight_shows(tmp_path: Path, family: str) -> None:
    """Without it the logits differ by far more than the tolerance of float32."""
    id_ = SEEN.get(family, "transformer/short")
    case = next(case for case in cases_of(family, tmp_path, ("float64", "float32")) if case.id == id_)
    bound = tolerance.expect(case.at("float32"))["output"].bound
    right = components.answer(case)["output"]
    for name, array in case.parameters.items():
        other = dataclasses.replace(case, parameters={**case.parameters, name: _neutral(name, array, case.config)})
        error = np.abs(components.answer(other)["output"] - right).max()
        assert (error > FAR * bound) != _unseen(name, case.config), (name, error / bound)


@pytest.mark.parametrize("family", every(3, FAMILIES))
@SIZES
def test_logits_stay_of_the_size_of_their_inputs(tmp_path: Path, family: str, size: str) -> None:
    """Also in float16: nothing overflows or vanishes."""
    new.write(family, tmp_path / "a", size=size)
    checkpoint = checkpoints.load(tmp_path / "a")
    config = checkpoint.config
    component = "transformer" if config.decoder_layers else "masked_language_logits"
    token_bt = np.arange(1, 8)[None]
    inputs = {"source": token_bt if config.encoder_layers else None} | ({"target": token_bt} if config.decoder_layers else {})
    logits = components.answer(Case("a", component, config, inputs, checkpoint.parameters).at("float64"))["output"]
    assert 1 < logits.std() < 30 and np.abs(logits).max() < 300


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", ["tiny", "small"])
def test_no_two_sizes_are_equal_and_prompts_are_longer_than_windows(family: str, size: str) -> None:
    """Sizes of axes and layers; only the key heads of BERT and GPT-2 equal their heads."""
    config = new._config(new.family_of(family), new._said(family, size, {}))
    assert config.window < MEDIUM - 1
    for scaling in (config.rotary_scaling, config.local_rotary_scaling):
        assert (scaling.original_length or 0) < MEDIUM
    assert (config.max_positions or LONG) == LONG  # the last row of a table is read
    layers = config.encoder_layers or config.decoder_layers
    vocabulary = config.source_vocabulary if config.encoder_layers else config.target_vocabulary
    sizes = [config.model_width, config.heads, config.key_size, config.feed_forward_width, vocabulary, layers]
    sizes += [config.decoder_layers] if config.cross_attention else []
    sizes += [size for size in (config.experts, config.expert_width, config.shared_width) if size and size != config.feed_forward_width]
    sizes += [] if config.heads == config.key_value_heads else [config.key_value_heads]
    assert config.heads != config.key_value_heads or "num_key_value_heads" not in FAMILIES[family].entry_names().values()
    assert len({*sizes}) == len(sizes), sizes
    assert min(sizes) > 1


@pytest.mark.parametrize("family", every(4, FAMILIES))
def test_a_seed_has_one_folder_and_another_seed_another(tmp_path: Path, family: str) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        new.write(family, tmp_path / name, seed=seed)
    bytes_of = {name: {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc"}
    assert bytes_of["a"] == bytes_of["b"]
    assert bytes_of["a"].keys() == {"config.json", "generation_config.json", "model.safetensors"}
    constants = FAMILIES[family].sinusoids
    one, other = (
        {tensor: array for tensor, array in container.read(tmp_path / name).tensors.items() if not tensor.endswith(constants)}
        for name in "ac"
    )
    assert one.keys() == other.keys() and not any(np.array_equal(one[name], other[name]) for name in one)
    assert len({array.tobytes() for array in one.values()}) == len(one)  # tensors are distinct as well


@pytest.mark.parametrize("family", every(4, FAMILIES))
def test_every_dtype_is_a_rounding_of_the_same_weights(tmp_path: Path, family: str) -> None:
    for dtype in DTYPES:
        new.write(family, tmp_path / dtype, dtype=dtype)
    own = {dtype: container.read(tmp_path / dtype).tensors for dtype in DTYPES}
    for dtype in DTYPES:
        assert {str(array.dtype) for array in own[dtype].values()} == {dtype}
        assert json.loads((tmp_path / dtype / "config.json").read_text())["dtype"] == dtype
        assert_same_bits(own[dtype], {name: array.astype(numpy_dtype(dtype)) for name, array in own["float64"].items()})


def test_the_command_writes_what_it_is_asked_for(tmp_path: Path) -> None:
    """A larger size, another seed and dtype, entries with dots; and reports it in one line."""
    options = ("--seed", 3, "--size", "small", "--dtype", "bfloat16", "--set", "rope_parameters.factor=4", "--set", "hidden_act=gelu")
    said = succeeded("new-checkpoint", "llama", "--out", tmp_path / "a", *options)
    checkpoint = checkpoints.load(tmp_path / "a", "hugging-face")
    count = sum(array.size for array in checkpoint.parameters.values())
    assert said.out == f"wrote {tmp_path / 'a'}: LlamaForCausalLM, {count:,} parameters, bfloat16\n"
    config = checkpoint.config
    assert (config.model_width, config.rotary_scaling.factor, config.activation) == (192, 4.0, "gelu_erf")
    assert config.rotary_scaling.kind == "llama3"  # the object's other entries are unchanged
    want = {name: array.astype(numpy_dtype("bfloat16")) for name, array in new.weights(config, 3).items()}
    assert_same_bits(checkpoint.parameters, want)
    said_there = json.loads((tmp_path / "a" / "generation_config.json").read_text())
    assert said_there == {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize("count", [3, 6])
@pytest.mark.parametrize("family", ["gemma2", "smollm3", "qwen3"])
def test_what_is_listed_by_layer_has_as_many_as_there_are(tmp_path: Path, family: str, count: int) -> None:
    new.write(family, tmp_path / "a", settings={"num_hidden_layers": count})
    said = json.loads((tmp_path / "a" / "config.json").read_text())
    assert {len(value) for name, value in said.items() if isinstance(value, list) and name != "architectures"} <= {count}
    assert said.get("no_rope_layers", [0, 1])[:2] == [0, 1]
    with pytest.raises(ValueError, match="layer_types"):
        new.write("gemma2", tmp_path / "b", settings={"num_hidden_layers": count, "layer_types": ["full_attention"] * 4})


@pytest.mark.parametrize(("family", "given", "message"), [
    ("qwen4", (), "gpt2, .*; got 'qwen4' .nearest: qwen[23]"),
    ("llama", ("--set", "nonsense=1"), "nonsense"),
    ("llama", ("--set", "rope_parameters.nonsense=1"), "nonsense"),
    ("llama", ("--set", "hidden_size=wide"), "hidden_size"),
    ("llama", ("--set", "hidden_size=-3"), "hidden_size"),
    ("llama", ("--set", "num_key_value_heads=4"), "num_key_value_heads must divide num_attention_heads; got 4 and 6"),
    ("llama", ("--set", "hidden_size.more=3"), "hidden_size.more; got 48"),
    ("llama", ("--set", "hidden_size"), "--set must be ENTRY=VALUE; got 'hidden_size'"),
    ("llama", ("--set", "hidden_size=3", "--set", "hidden_size=3"), "--set hidden_size"),
    ("llama", ("--set", "model_type=gemma"), "model_type .* llama"),
    ("llama", ("--set", "rope_parameters.rope_type=su"), "su"),
    ("llama", ("--set", 'architectures=["LlamaForQuestions"]'), "architectures"),
    ("bert", ("--set", 'architectures=["BertForPreTraining"]'), "next_sentence|architectures"),
    ("bert", ("--set", "is_decoder=true"), "is_decoder"),
    ("gemma2", ("--set", 'layer_types=["full_attention"]'), "layer_types"),
    ("qwen3", ("--set", "rope_theta=5000"), "rope_theta .* rope_parameters.rope_theta"),
    ("gemma3_text", ("--set", "rope_theta=5000"), r"set rope_parameters.full_attention.rope_theta or rope_parameters.sliding\S+rope_theta"),
    ("llama", ("--seed", "-1"), "-1"),
])  # fmt: skip
def test_what_it_cannot_be_is_one_message_and_nothing_is_written(tmp_path: Path, family: str, given: tuple[str, ...], message: str) -> None:
    error = refused("new-checkpoint", family, "--out", tmp_path / "a", *given)
    assert re.search(message, error), error
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("mine")
    error = refused("new-checkpoint", "llama", "--out", tmp_path / "a")
    assert mentions(error, f"{tmp_path / 'a'} … Hugging Face")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["notes.txt"] and len([*tmp_path.iterdir()]) == 1
