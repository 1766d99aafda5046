"""A port in NumPy: one function per component, named after the component.

    rosettaformer check my_port.py       runs every case of these components
    rosettaformer diagnose my_port.py    names the bug and suggests a fix

Each function takes a case, which has `inputs`, `parameters` (by canonical name) and `config`, and
returns an array, or the pair (output, weights) if case.inputs["return_weights"] is True. Replace
the code below with your own, and add functions for more components.
"""

import numpy as np

from rosettaformer.ports import CLASSIC, NotCovered

# Config fields with a fixed value in your code; all cases use these values. Without this line,
# all values are tested. CLASSIC disables RoPE, RMS norms, gates, windows, caps and query-key norms.
# To fix more fields: CLASSIC | {"model_width": 12, "heads": 3}.
config = CLASSIC

# The dtypes that your code supports; without this line, also bfloat16 and float16 are tested.
dtypes = ("float64", "float32")


def layer_norm(case):
    x = case.inputs["x_btd"]
    centred = x - x.mean(-1, keepdims=True)
    variance = np.mean(centred**2, -1, keepdims=True)
    normalised = centred / np.sqrt(variance + x.dtype.type(case.config.epsilon))
    return normalised * case.parameters["scale"] + case.parameters["offset"]


def softmax(case):
    logits, mask = case.inputs["logits"], case.inputs.get("mask")
    if mask is not None:
        logits = np.where(mask, logits, -np.inf)
    largest = logits.max(-1, keepdims=True)
    exponentials = np.exp(logits - np.where(np.isfinite(largest), largest, 0))
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)  # zeros for fully masked rows


def feed_forward(case):
    if case.config.activation != "relu":
        raise NotCovered("only relu is implemented")  # reported as "not covered", never as a pass
    hidden = case.inputs["x_btd"] @ case.parameters["hidden.kernel"] + case.parameters["hidden.bias"]
    active = np.maximum(hidden, 0)
    if "keep_btf" in case.inputs:  # a training case: the dropout mask is an input; True = keep
        active = np.where(case.inputs["keep_btf"], active / active.dtype.type(1 - case.config.hidden_dropout_rate), 0)
    return active @ case.parameters["output.kernel"] + case.parameters["output.bias"]
