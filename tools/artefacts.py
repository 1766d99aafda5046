"""Exports small models to every format, checks the files, and writes a table of the results.

Run it with `make evidence STEP=artefacts`.
"""

import functools
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evidence import HOUSE, kept, write

from reference_numpy import TransformerConfig, preset
from rosettaformer.files import checkpoints
from rosettaformer.files.artefacts.kinds import KINDS
from rosettaformer.files.checkpoints.hugging_face import new

SMALL = {"model_width": 48, "heads": 4, "key_size": 12, "value_size": 12, "feed_forward_width": 96}
VOCABULARY = {"source_vocabulary": 101, "target_vocabulary": 101}
MODELS = {
    "the paper's": preset("paper_base", **SMALL, **VOCABULARY, key_value_heads=4, encoder_layers=2, decoder_layers=2, padding_id=0),
    "BERT": preset("bert_base", **SMALL, **VOCABULARY, key_value_heads=4, encoder_layers=2, max_positions=1024),
    "GPT-2": preset("gpt2_small", **SMALL, **VOCABULARY, key_value_heads=4, decoder_layers=2, max_positions=1024),
    "Llama 3.1": preset("llama31_8b", **SMALL, **VOCABULARY, key_value_heads=2, decoder_layers=2),
}
ROWS = (*((name, "float32") for name in MODELS), ("BERT", "float64"), ("Llama 3.1", "bfloat16"))
SHAPES = ("one_token", "short", "batch", "medium", "long", "right_padding", "left_padding", "empty_row")
FINE = ("pass", "told", "not shown", "not covered")
PACKAGES = ("torch", "onnxruntime", "tensorflow-cpu", "ai-edge-litert", "jax")
TITLES = {"onnx": "ONNX", "pt2": "torch.export", "aoti": "AOTInductor", "savedmodel": "SavedModel", "litert": "LiteRT",
          "stablehlo": "StableHLO"}  # fmt: skip


HEAD = """# Exports, checked

Four small models at eight shapes, with `rosettaformer export DIR --to FORMAT` and `rosettaformer check
FILE --checkpoint DIR`. Each cell has the number of shapes within tolerance, the file's largest error
divided by NumPy's own rounding error in that dtype (up to 4 passes), and the same for steps with a
cache. Versions: """


def main() -> None:
    """Writes the page."""
    folder = Path(sys.argv[1])
    lines = [kept(folder, f"{name} {dtype}", functools.partial(_row, name, dtype)) for name, dtype in ROWS]
    versions = ", ".join(f"{name} {version(name).partition('+')[0]}" for name in PACKAGES)
    titles = " | ".join(TITLES[kind] for kind in KINDS)
    head = f"{HEAD}{versions}.\n\n| model | dtype | {titles} |\n|---|---|{'---|' * len(KINDS)}\n"
    write(folder, "artefacts.md", head + "".join(lines))


def _row(name: str, dtype: str) -> str:
    config = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "model.safetensors")
        checkpoints.save(checkpoint, config, new.weights(config, 0))
        cells = [_cell(checkpoint, config, kind, dtype) for kind in KINDS]
    return f"| {name} | {dtype} | {' | '.join(cells)} |\n"


def _cell(checkpoint: Path, config: TransformerConfig, kind: str, dtype: str) -> str:
    """Returns an export's result, or a link to the reason in docs/artefacts.md."""
    with tempfile.TemporaryDirectory(dir=checkpoint.parent) as folder:
        file, report = Path(folder, f"model{KINDS[kind].suffix}"), Path(folder, "report.json")
        done = _run("export", checkpoint, "--to", kind, "--out", file, "--dtype", dtype)
        if reason := re.search(r"see docs/artefacts\.md(#\S+)", done.stderr):
            return f"refused: docs/artefacts.md{reason[1]}"
        if done.returncode:
            raise ValueError(f"{config} as {kind} in {dtype}: {done.stdout}{done.stderr}")
        _run("check", file, "--allow-code", "--checkpoint", checkpoint, "--json", report)
        return _verdict(json.loads(report.read_text())["results"])


def _verdict(results: list[dict[str, Any]]) -> str:
    """Returns the number of passing shapes, the largest errors, and other failures."""
    whole = {shape: [one for one in results if one["case"].partition("/")[2] == shape] for shape in SHAPES}
    good = sum(bool(rows) and all(one["status"] == "pass" for one in rows) for rows in whole.values())
    said = f"{good} of {len(SHAPES)}: {_worst([*itertools.chain(*whole.values())])}"
    steps = [one for one in results if one["component"] == "decode_in_steps" or one["case"].endswith("_in_steps")]
    said += f", in steps {_worst(steps)}" if steps else ""
    counted = [*itertools.chain(*whole.values()), *steps]
    others = [one["case"] for one in results if one not in counted and one["status"] not in FINE]
    return f"{said}; {', '.join(others)} fail" if others else said


def _worst(results: list[dict[str, Any]]) -> str:
    if failed := [one["case"] for one in results if one["status"] != "pass"]:
        return f"{', '.join(failed)} fail"
    return f"{max(one['ratio'] for one in results):.2f}"


def _run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rosettaformer", *map(str, words)]
    return subprocess.run(command, cwd=HOUSE, capture_output=True, text=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"})


if __name__ == "__main__":
    main()
