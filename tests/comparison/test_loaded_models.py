"""`rosettaformer compare` of folders that transformers loads: classes without a head, and families that this project does not convert."""

from pathlib import Path
from typing import Any

import pytest
from kinds import conformance

from rosettaformer.comparison import comparing
from rosettaformer.comparison.output import terminal

pytestmark = pytest.mark.usefixtures("sides_in_process")

SIZES = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
FALCON = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
WHISPER = {"vocab_size": 60, "d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 3, "num_mel_bins": 8,
           "decoder_attention_heads": 3, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_source_positions": 10, "pad_token_id": 1,
           "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}  # fmt: skip
PHIMOE = {**SIZES, "num_key_value_heads": 2, "num_local_experts": 4}
GEMMA = {**SIZES, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16}
# classes of transformers, each with its config
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "LlamaModel": ("LlamaConfig", {**SIZES, "num_key_value_heads": 2}),
    "GPT2Model": ("GPT2Config", {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "T5ForConditionalGeneration": ("T5Config", T5),
    "T5EncoderModel": ("T5Config", T5),
    "PhimoeForCausalLM": ("PhimoeConfig", PHIMOE),
    "WhisperForConditionalGeneration": ("WhisperConfig", WHISPER),
    "ViTForImageClassification": ("ViTConfig", {**SIZES, "image_size": 16, "patch_size": 4}),
    "FalconForCausalLM": ("FalconConfig", FALCON),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SIZES),
    "MambaForCausalLM": ("MambaConfig", {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 8}),
    "Gemma3ForCausalLM": ("Gemma3TextConfig", GEMMA),
}
UNSUPPORTED = [name for name in CLASSES if name.startswith(("T5", "Whisper", "ViT", "Phimoe", "Falcon", "GPTNeoX", "Mamba"))]
LOADED = (
    "import transformers\n\ndef model():\n    return transformers.{}.from_pretrained({!r}, attn_implementation='eager', dtype='float32')\n"
)


def saved(kind: str, folder: Path) -> Path:
    """Saves a small random model whose every parameter matters."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config, settings = CLASSES[kind]
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings)).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(0.2 * torch.randn_like(tensor) + (tensor.ndim == 1 and "norm" in name.lower() and "bias" not in name))
    model.save_pretrained(folder)
    return folder


def compared(left: str, right: str, *inputs: str) -> dict[str, Any]:
    report = comparing.compare(left, right, weights="own", inputs=inputs, gradients=False, step=False)
    assert not report["left_out"] and report["sentences"]
    return report


@pytest.mark.conformance
@pytest.mark.parametrize("kind", ["LlamaModel", "GPT2Model"])
def test_hidden_states_are_compared_with_hidden_states(kind: str, tmp_path: Path) -> None:
    folder = saved(kind, tmp_path / "folder")
    report = compared(f"transformers:{folder}", f"{folder}@torch")
    assert report["verdict"] in ("equal", "rounding") and len(report["outputs"]) == 1
    assert any("decoder.final_norm" in note for note in report["notes"])
    if report["verdict"] == "rounding":
        assert report["float64"]["first"][0] in {row["left"] for row in report["layers"]}
    assert "gradients" not in report


@pytest.mark.parametrize("kind", [name if name == "GPTNeoXForCausalLM" else conformance(name) for name in UNSUPPORTED])
def test_families_that_are_not_converted_are_compared(kind: str, tmp_path: Path) -> None:
    folder = saved(kind, tmp_path / "folder")
    own = tmp_path / f"{tmp_path.name}_own.py"  # a name per test, since tests share a process
    own.write_text(LOADED.format(kind, str(folder)))
    other = f"{own}:model" if kind != "MambaForCausalLM" else f"transformers:{folder}"  # it takes no implementation
    report = compared(f"transformers:{folder}", other)
    assert report["verdict"] == "equal" and all(len(row["forced"]) == 2 for row in report["layers"] if row["leaf"] and not row["note"])


@pytest.mark.conformance
@pytest.mark.parametrize("length", [2, 8, 16])
def test_a_changed_scale_is_found_though_the_length_is_the_number_or_the_size_of_heads(length: int, tmp_path: Path) -> None:
    folder = saved("Gemma3ForCausalLM", tmp_path / "folder")
    changed = (
        LOADED.replace("return", "made =") + "    for layer in made.model.layers:\n        layer.self_attn.scaling = 1.0\n    return made\n"
    )
    own = tmp_path / f"{tmp_path.name}_own.py"
    own.write_text(changed.format("Gemma3ForCausalLM", str(folder)))
    report = compared(f"transformers:{folder}", f"{own}:model", f"input_ids: b=2 t={length} int64 <60")
    assert report["verdict"] == "differs" and report["first"]["before"][0] == "model.layers.0.self_attn.o_proj"
    assert "without a scale" in report["first"]["how"]


def test_no_row_that_agrees_in_float32_is_listed_as_a_difference() -> None:
    row = {"left": "a", "right": "b", "error": 1e-7, "noise": 1e-7, "units": 1.0, "wide": 1e6}
    report = {"gradients": [{**row, "verdict": verdict} for verdict in ("equal", "rounding", "differs", "convention")],
              "steps": {"sgd": {"rows": [{**row, "verdict": "rounding"}]}}}  # fmt: skip
    listed = {title: [row["verdict"] for row in rows] for title, rows in terminal._others(report)}
    assert [*listed.values()] == [["differs", "convention"], []]
