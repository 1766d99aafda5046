"""A port that does everything wrong, by the name of the case. Used by the tests of the runner."""

import os
import signal
import time
from typing import Any

import numpy as np

from reference_numpy import normalization
from rosettaformer.conformance.case import Case
from rosettaformer.conformance.port import Unsupported


def layer_norm(case: Case) -> Any:
    """The truth, spoiled as the case's name says."""
    y = normalization.layer_norm(case.parameters, case.inputs["x_btd"], case.config.epsilon)
    if case.name == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if case.name == "exit":
        os._exit(7)
    if case.name == "hang":
        time.sleep(600)
    if case.name == "raise":
        raise RuntimeError("no such thing")
    if case.name == "unsupported":
        raise Unsupported("aten::made_up")
    if case.name == "garbage":
        print("\x00" * 5000 + "garbage on standard output")
    if case.name == "random":
        return y + np.random.default_rng().standard_normal(y.shape).astype(y.dtype) * 1e-12
    return {
        "nan": lambda: np.where(y > 0, np.nan, y).astype(y.dtype),
        "shape": lambda: y[:, :, :-1],
        "dtype": lambda: y.astype(np.float32),
        "nothing": lambda: None,
        "wrong": lambda: y * 1.001,
    }.get(case.name, lambda: y)()
