"""`rosettaformer compare` on models as two libraries publish them, without a table: transformers beside KerasHub."""

import json
from pathlib import Path
from typing import Any

import pytest
from invoke import invoke

MODELS = Path(__file__).resolve().parents[1] / "compared"
TOKENS = ("--input", "input_ids: b=2 t=7 int64 <60")
BOTH = (*TOKENS, "--input", "decoder_input_ids: b=2 s=5 int64 <60")
IMAGE = ("--input", "pixel_values: b=2 y=16 x=16 c=3 float32")
FAMILIES = ("llama", "bert", "distilbert", "gpt2", "mistral", "qwen2", "gemma", "t5", "bart", "vit")
# What KerasHub fixes and no argument changes: where it differs from transformers, and what is said of it.
OTHERWISE = {
    "roberta": ("embeddings.LayerNorm", "epsilon 1e-12 on the left, 1e-05 on the right"),
    "qwen3": ("layers.0.self_attn.q_norm", "epsilon 1e-06 on the left, 1e-05 on the right"),
}
ATTENTION = ("layers.0.self_attn.v_proj", "layers.0.self_attn.o_proj")
FEED_FORWARD = ("layers.0.mlp.up_proj", "layers.0.mlp.down_proj")
PLANTED: dict[str, tuple[tuple[str, ...], str]] = {  # the layer, or the two between which it is, and what is said
    "llama_scale": (ATTENTION, ""),
    "llama_epsilon": (("layers.0.input_layernorm",), "epsilon 0.001 on the left, 1e-06 on the right"),
    "llama_activation": (FEED_FORWARD, ""),
    "llama_rotary": (ATTENTION, "only positions 1 to 6 of 7 differ"),
    "llama_gate": (FEED_FORWARD, ""),
    "llama_groups": (ATTENTION, ""),
    "bert_activation": (("encoder.layer.0.intermediate.dense", "encoder.layer.0.output.dense"), "gelu_approximate on the right"),
    "bert_epsilon": (("embeddings.LayerNorm",), "epsilon 1e-05 on the left, 1e-12 on the right"),
    "gpt2_scale": (("h.0.ln_1", "h.0.attn.c_proj"), ""),
    "gpt2_bias": (("h.0.mlp.c_proj",), ""),
    "gemma_one": (("layers.0.post_attention_layernorm",), "1 + scale"),
    "gemma_activation": (FEED_FORWARD, ""),
}


def compared(left: str, right: str, folder: Path, *options: str, code: int) -> dict[str, Any]:
    for package in ("torch", "transformers", "keras_hub"):
        pytest.importorskip(package)
    inputs = {"t5": BOTH, "bart": BOTH, "vit": IMAGE}.get(right, TOKENS)
    sides = MODELS / f"published_{left}", MODELS / f"published_keras.py:{right}"
    found = invoke("compare", *sides, *inputs, *options, "-q", "--json", folder / "report.json")
    assert found.code == code, found
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


@pytest.mark.second
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_models_of_two_libraries_are_equal(family: str, tmp_path: Path) -> None:
    report = compared(f"torch.py:{family}", family, tmp_path, code=0)
    assert report["verdict"] == "rounding" and report["first"] is None  # KerasHub's norms are float32 in a float64 model
    gradients = [row["left"] for row in report["gradients"] if not row["left"].startswith("input ")]
    assert gradients == [row["left"] for row in report["variables"] if row["left"] and row["right"] and row["trainable"]]
    assert all(step["rows"] for step in report["steps"].values())


@pytest.mark.second
@pytest.mark.parametrize("family", OTHERWISE)
def test_what_a_library_fixes_is_named(family: str, tmp_path: Path) -> None:
    report = compared(f"torch.py:{family}", family, tmp_path, "--no-gradients", "--no-step", code=1)
    where, said = OTHERWISE[family]
    assert report["first"]["left"] == where and said in report["sentences"][1]


@pytest.mark.second
@pytest.mark.parametrize("name", PLANTED)
def test_a_difference_between_two_libraries_is_found_where_it_is(name: str, tmp_path: Path) -> None:
    report = compared(f"planted.py:{name}", name.partition("_")[0], tmp_path, "--no-gradients", "--no-step", code=1)
    where, said = PLANTED[name]
    first = report["first"]
    assert ((first["left"],) if first["what"] == "layer" else (first["after"][0], first["before"][0])) == where
    assert said in report["sentences"][1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with its head, as transformers writes it, every weight random."""
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "num_key_value_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=60, rms_norm_eps=1e-6, **sizes))
    for parameter in model.parameters():
        parameter.data.normal_(0.5 if parameter.dim() < 2 else 0.0, 0.3)
    path = tmp_path_factory.mktemp("llama")
    model.save_pretrained(path)
    return path


@pytest.mark.second
@pytest.mark.parametrize(("other", "count"), [("keras-hub:{}", 20), ("{}@jax", 21), ("{}@torch", 21)])
def test_folders_are_matched_by_their_numbers(other: str, count: int, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("keras_hub" if other.startswith("keras") else "flax")
    found = invoke("compare", f"transformers:{folder}", other.format(folder), "-q", "--no-step", "--json", tmp_path / "report.json")
    assert found.code == 0, found
    report = json.loads((tmp_path / "report.json").read_text())
    assert f"matched by value: {count} of {count} variables, which hold the same numbers on both sides" in report["notes"]
    assert report["first"] is None and len(report["gradients"]) == count


@pytest.mark.second
@pytest.mark.parametrize("library", ["transformers", "keras-hub"])
def test_a_folder_that_a_library_cannot_load_is_one_message(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library.replace("-", "_"))
    for path, said in ((tmp_path, "cannot"), (tmp_path / "none", "there is no folder")):
        found = invoke("compare", f"{library}:{path}", f"{library}:{path}", "-q")
        assert found.code == 2 and said in found.err and "Traceback" not in found.err


@pytest.mark.second
@pytest.mark.parametrize(("left", "right", "code"), [("Own", "Stock", 0), ("Stock", "Own", 0), ("Scaled", "Stock", 1)])
def test_four_dense_layers_are_one_attention(left: str, right: str, code: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sides = [MODELS / f"attention_torch.py:{name}" for name in (left, right)]
    found = invoke("compare", *sides, "--input", "x: b=2 t=5 d=12 float32", "-q", "--json", tmp_path / "report.json")
    assert found.code == code, found
    report = json.loads((tmp_path / "report.json").read_text())
    assert len([row for row in report["gradients"] if not row["left"].startswith("input ")]) == 10
    assert code == 0 or report["first"]["after"] == ["norm", "norm"]
