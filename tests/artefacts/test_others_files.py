"""Files of other exporters are each judged by a single command."""

import json
from pathlib import Path

import pytest
from invoke import invoke

from reference_numpy import preset
from rosettaformer.files.artefacts import meanings
from rosettaformer.files.artefacts.signature import Entry, Tensor

CONFORM = (
    "bert-dynamo.onnx", "bert-torchscript.onnx", "bert-optimum.onnx", "bert-keras",
    "bert-keras.tflite", "gpt2-dynamo.onnx", "gpt2-torchscript.onnx", "gpt2-optimum.onnx",
    "llama-dynamo.onnx", "llama-torchscript.onnx", "llama-optimum.onnx", "llama-keras",
    "gpt2-export.pt2", "gpt2-inductor.pt2", "gpt2-flax.stablehlo", "llama-flax.stablehlo",
    "bert-int8.onnx", "bert-int8.tflite", "bert-float16.onnx", "bert-float16.tflite",
    "bert-int8-weights.pt2", "bert-int8-dynamic.pt2",
)  # fmt: skip
# file -> verdict
TABLE = dict.fromkeys(CONFORM, "conforms") | {
    "transformer-dynamo.onnx": "differs: left padding, empty_row",
    "transformer-torchscript.onnx": "fails in most cases",
    "bert-keras.onnx": "conforms at its sizes",
    "bert-keras.pt2": "conforms at its sizes",
    "gpt2-keras": "differs: left padding, both_padding",
    "gpt2-keras.tflite": "differs: left padding, both_padding",
    "gpt2-keras.onnx": "differs: left padding",
    "gpt2-keras.pt2": "differs: left padding",
    "llama-keras.tflite": "is refused",
    "llama-keras.onnx": "conforms at its sizes",
    "llama-keras.pt2": "conforms at its sizes",
    "gpt2-without-positions.onnx": "differs: left padding, both_padding",
    "llama-static.pt2": "conforms at its sizes",
    "llama-static.onnx": "conforms at its sizes",
}
FINE = ("pass", "told", "not shown", "not covered")
LOWER = [name for name in TABLE if "int8" in name or "float16" in name]


@pytest.fixture
def exports():
    for package in ("torch", "transformers", "onnxscript", "onnxruntime", "keras_hub", "ai_edge_litert", "flax", "torchao"):
        pytest.importorskip(package)
    import other_exports

    return other_exports


def verdict(said: str, rows: list[dict[str, str]]) -> str:
    """Summarizes a run. Cases with padding on the left count as one if all of them differ."""
    statuses = {row["status"] for row in rows}
    names = [(row["case"].partition("/")[2], row["status"]) for row in rows]
    passed = [name for name, status in names if status == "pass"]
    wrong = [*dict.fromkeys(name for name, status in names if status not in FINE)]
    if "did not start" in said:
        return "is refused"
    if len(wrong) > len(passed):
        return "fails in most cases"
    left = [name for name in wrong if "left_padding" in name]
    if left and not any("left_padding" in name for name in passed):
        wrong = ["left padding", *(name for name in wrong if name not in left)]
    return f"differs: {', '.join(wrong)}" if wrong else "conforms at its sizes" if "not shown" in statuses else "conforms"


def judged(exports, name: str, folder: Path, planted: bool = False) -> tuple[str, str]:
    """Returns the output of `check` for the file of that name, and its verdict."""
    if name.endswith("-optimum.onnx") and not exports.OPTIMUM:
        pytest.skip("ROSETTAFORMER_OPTIMUM is no Python of an environment with optimum-onnx")
    checkpoint, file = exports.made(name, folder, planted)
    report = folder / "found.json"
    run = invoke("check", file, "--checkpoint", checkpoint, *exports.FILES[name].words, "--json", report)
    said = run.out + run.err
    rows = json.loads(report.read_text())["results"] if report.exists() else []
    found = verdict(said, rows)
    assert (run.code == 0) == (found == "conforms"), said
    return said, found


@pytest.mark.conformance
@pytest.mark.parametrize("name", TABLE)
def test_a_file_has_its_verdict(name: str, exports, tmp_path: Path) -> None:
    said, found = judged(exports, name, tmp_path)
    assert found == TABLE[name], said


@pytest.mark.conformance
@pytest.mark.parametrize("name", LOWER)
def test_a_kernel_of_a_lower_precision_that_is_three_times_as_large_differs(name: str, exports, tmp_path: Path) -> None:
    said, _ = judged(exports, name, tmp_path, planted=True)
    assert f"more than {'int8' if 'int8' in name else 'float16'} explains" in said


@pytest.mark.conformance
def test_the_table_has_every_file(exports) -> None:
    assert TABLE.keys() == exports.FILES.keys()


# names as the libraries write them -> their meanings
NAMES = {
    "bert_base": {"args_0_token_ids": "source", "args_0_padding_mask": "source_mask", "args_0_segment_ids": "segments"},
    "gpt2_small": {
        "input_ids": "target",
        "attention_mask": "target_mask",
        "position_ids": "target_positions",
        "num_logits_to_keep": "logits_to_keep",
        "past_key_values.0.key": "key.0",
        "past_key_values.0.value": "value.0",
    },
    "paper_base": {
        "encoder_token_ids": "source",
        "encoder_padding_mask": "source_mask",
        "decoder_token_ids": "target",
        "decoder_padding_mask": "target_mask",
    },
}


@pytest.mark.parametrize("config", NAMES)
def test_names_of_the_libraries_say_what_inputs_are(config: str) -> None:
    # in the order in which Keras flattens a dict, with uninformative dtype and rank
    entry = Entry("forward", tuple(Tensor(name, "int32", ("", "")) for name in sorted(NAMES[config])), ())
    assert meanings.of_inputs(entry, preset(config), {}) == NAMES[config]
