"""Files that other exporters write are judged by one command each, and docs/artefacts.md says how they fare."""

import json
import re
from pathlib import Path

import pytest
from invoke import invoke

from reference_numpy import preset
from rosettaformer.artefacts import meanings
from rosettaformer.artefacts.signature import Entry, Tensor

HOUSE = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
SECTION = (HOUSE / "docs/artefacts.md").read_text().partition("## Files that others exported")[2]
TABLE = {name: verdict for name, _, verdict in ROW.findall(SECTION)}
FINE = ("pass", "told", "not shown", "not covered")
LOWER = [name for name in TABLE if "int8" in name or "float16" in name]


@pytest.fixture
def exports():
    for package in ("torch", "transformers", "onnxscript", "onnxruntime", "keras_hub", "ai_edge_litert", "flax", "torchao"):
        pytest.importorskip(package)
    import other_exports

    return other_exports


def verdict(said: str, rows: list[dict[str, str]]) -> str:
    """A run in a few words."""
    statuses = {row["status"] for row in rows}
    wrong = [*dict.fromkeys(row["case"].partition("/")[2] for row in rows if row["status"] not in FINE)]
    if "did not start" in said:
        return "is refused"
    if len(wrong) > 5:
        return "fails in most cases"
    return f"differs: {', '.join(wrong)}" if wrong else "conforms at its sizes" if "not shown" in statuses else "conforms"


def judged(exports, name: str, folder: Path, planted: bool = False) -> tuple[str, str]:
    """What `check` says of the file of that name, and its verdict."""
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
def test_a_file_fares_as_the_table_says(name: str, exports, tmp_path: Path) -> None:
    said, found = judged(exports, name, tmp_path)
    assert found == TABLE[name], said


@pytest.mark.conformance
@pytest.mark.parametrize("name", LOWER)
def test_a_kernel_of_a_lower_precision_that_is_three_times_as_large_differs(name: str, exports, tmp_path: Path) -> None:
    said, _ = judged(exports, name, tmp_path, planted=True)
    assert f"more than {'int8' if 'int8' in name else 'float16'} explains" in said


@pytest.mark.conformance
def test_the_table_has_every_file(exports) -> None:
    assert [*TABLE] == [*exports.FILES]


# names as the libraries write them -> what they are
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
    # in the order in which Keras flattens a dict, and of a dtype and rank that say nothing
    entry = Entry("forward", tuple(Tensor(name, "int32", ("", "")) for name in sorted(NAMES[config])), ())
    assert meanings.of_inputs(entry, preset(config), {}) == NAMES[config]
