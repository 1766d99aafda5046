"""A port of functions that gives gradients: each by a complex step along every element, which shares no formula with the reference's.

f(x + i h).imag / h is the derivative to the last bit, since nothing is subtracted (Squire & Trapp 1998).
"""

import math

import numpy as np

from rosettaformer.ports import CLASSIC

STEP = 1e-30

config = CLASSIC
dtypes = ("float64",)


def _derivatives(function, arrays, cotangent):
    """The gradient of <cotangent, function(**arrays)> with respect to every array."""
    gradients = {}
    for name, array in arrays.items():
        gradient = np.zeros(array.size)
        for index in range(array.size):
            moved = array.astype(complex).reshape(-1)
            moved[index] += 1j * STEP
            gradient[index] = (function(**arrays | {name: moved.reshape(array.shape)}).imag * cotangent).sum() / STEP
        gradients[name] = gradient.reshape(array.shape)
    return gradients


def layer_norm_vjp(case):
    epsilon = case.config.epsilon

    def layer_norm(x_btd, scale, offset):
        centred = x_btd - x_btd.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * scale + offset

    x = case.inputs["x_btd"]
    found = _derivatives(layer_norm, {"x_btd": x} | dict(case.parameters), case.inputs["cotangent"])
    return {"x_btd": found["x_btd"], "parameters": {"scale": found["scale"], "offset": found["offset"]}}


def softmax_vjp(case):
    mask = case.inputs.get("mask")

    def softmax(logits):
        present = np.ones(logits.shape, bool) if mask is None else np.broadcast_to(mask, logits.shape)
        largest = np.where(present, logits.real, -np.inf).max(-1, keepdims=True)
        exponential = np.where(present, np.exp(np.where(present, logits - np.where(np.isfinite(largest), largest, 0), 0)), 0)
        total = exponential.sum(-1, keepdims=True)
        return exponential / np.where(total == 0, 1, total)

    return _derivatives(softmax, {"logits": case.inputs["logits"]}, case.inputs["cotangent"])


def cross_entropy(case):
    given = case.inputs
    logits, label = given["logits_btv"], given["label_bt"]
    mask = given.get("mask_bt", np.ones(label.shape, bool))
    smoothing, count = given.get("smoothing", 0.0), given.get("total") or max(int(mask.sum()), 1)
    log_p = logits - logits.max(-1, keepdims=True)
    log_p = log_p - np.log(np.exp(log_p).sum(-1, keepdims=True))
    q = (1 - smoothing) * np.eye(logits.shape[-1])[label.astype(int)] + smoothing / logits.shape[-1]
    return -math.fsum((q * log_p).sum(-1)[mask]) / count * np.float64(1)
