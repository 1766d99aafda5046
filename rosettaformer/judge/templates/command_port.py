#!/usr/bin/env python3
"""A port that is a separate command, without rosettaformer, for any language.

rosettaformer check --command ./my_port.py       runs every case of these components
rosettaformer diagnose --command ./my_port.py    names the bug and suggests a fix

Both run this file in two ways:

my_port.py --describe        prints what the port covers, as JSON
my_port.py CASES OUTPUTS     reads all cases in the folder CASES and writes their outputs to OUTPUTS
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

# The command's coverage. "config" holds the config fields with a fixed value.
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
    return exponentials / np.where(total == 0, 1, total)  # zeros for fully masked rows


def main(cases, outputs):
    for case in json.loads((cases / "manifest.json").read_text())["cases"]:
        # Arrays are inputs.NAME and parameters.NAME; other inputs are in the manifest.
        arrays = load_file(cases / case["file"])
        inputs = case["inputs"] | {name.removeprefix("inputs."): value for name, value in arrays.items() if name.startswith("inputs.")}
        parameters = {name.removeprefix("parameters."): value for name, value in arrays.items() if name.startswith("parameters.")}
        output = globals()[case["component"]](case["config"], inputs, parameters)
        # If inputs["return_weights"] is true, also save the attention weights, as "weights".
        save_file({"output": np.ascontiguousarray(output)}, outputs / case["outputs"])


if __name__ == "__main__":
    if sys.argv[1:] == ["--describe"]:
        print(json.dumps(ABOUT))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
