#!/usr/bin/env python3
"""A port that is a command of its own: it needs nothing of rosettaformer, and may be rewritten in any language.

rosettaformer check --command ./my_port.py       runs every case of these components through it
rosettaformer diagnose --command ./my_port.py    says what is wrong with it, and how to fix it

Both call the file in these two ways:

my_port.py --describe        prints what it covers
my_port.py CASES OUTPUTS     answers every case of the folder CASES by a file in the folder OUTPUTS
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

# What the command covers; "config" names the config fields that it fixes.
CONFIG = {"norm_offset": True, "norm_one_plus_scale": False}
ABOUT = {"components": ["layer_norm", "softmax"], "dtypes": ["float64", "float32"], "config": CONFIG}


def layer_norm(config, inputs, parameters):
    x = inputs["x_btd"]
    centred = x - x.mean(-1, keepdims=True)
    variance = np.mean(centred**2, -1, keepdims=True)
    normalised = centred / np.sqrt(variance + x.dtype.type(config["epsilon"]))
    return normalised * parameters["scale"] + parameters["offset"]


def softmax(config, inputs, parameters):
    logits, mask = inputs["logits"], inputs.get("mask")
    if mask is not None:
        logits = np.where(mask, logits, -np.inf)
    largest = logits.max(-1, keepdims=True)
    exponentials = np.exp(logits - np.where(np.isfinite(largest), largest, 0))
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)  # zeros where everything is masked


def main(cases, outputs):
    for case in json.loads((cases / "manifest.json").read_text())["cases"]:
        # The arrays of a case are named inputs.NAME and parameters.NAME; inputs that are plain values stand in the manifest.
        arrays = load_file(cases / case["file"])
        inputs = case["inputs"] | {name.removeprefix("inputs."): value for name, value in arrays.items() if name.startswith("inputs.")}
        parameters = {name.removeprefix("parameters."): value for name, value in arrays.items() if name.startswith("parameters.")}
        output = globals()[case["component"]](case["config"], inputs, parameters)
        # A component that is asked for its attention weights answers with a second array, "weights".
        save_file({"output": np.ascontiguousarray(output)}, outputs / case["outputs"])


if __name__ == "__main__":
    if sys.argv[1:] == ["--describe"]:
        print(json.dumps(ABOUT))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
