"""A port in NumPy: functions named after the components that it covers.

    rosettaformer check my_port.py       runs every case of these components through it
    rosettaformer diagnose my_port.py    says what is wrong with it, and how to fix it

A function takes a case and returns the array, or the pair (output, weights) where case.inputs["return_weights"] is True. The case has
`inputs`, `parameters` (by canonical name) and `config`. Put your own code in place of what is here; add functions to cover more.
"""

import numpy as np

from rosettaformer.ports import CLASSIC, NotCovered

# Config fields that your code fixes: the cases are made with these values. Without the line every value is checked.
# CLASSIC leaves out RoPE, RMS norms, gates, windows, caps and query-key norms; add more, such as CLASSIC | {"model_width": 12, "heads": 3}.
config = CLASSIC

# The dtypes that your code supports. Without the line all four are checked: float64, float32, bfloat16, float16.
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
    return exponentials / np.where(total == 0, 1, total)  # zeros where everything is masked


def feed_forward(case):
    if case.config.activation != "relu":
        raise NotCovered("only relu is written")  # said and counted in the report, never passed
    hidden = case.inputs["x_btd"] @ case.parameters["hidden.kernel"] + case.parameters["hidden.bias"]
    active = np.maximum(hidden, 0)
    if "keep_btf" in case.inputs:  # a case of training: what dropout keeps is given, True = keep
        active = np.where(case.inputs["keep_btf"], active / active.dtype.type(1 - case.config.hidden_dropout_rate), 0)
    return active @ case.parameters["output.kernel"] + case.parameters["output.bias"]
