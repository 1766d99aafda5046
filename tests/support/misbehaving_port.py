"""A port that does everything wrong, by the name of the case. Used by the tests of the runner."""

import importlib
import os
import random
import signal
import sys
import time
from typing import Any

import numpy as np

from reference_numpy import normalization
from rosettaformer.ports import Case, Unsupported

BUFFER = np.zeros((3, 5, 13))


def layer_norm(case: Case) -> Any:
    """The reference, spoiled as the case's name says."""
    y = normalization.layer_norm(case.parameters, case.inputs["x_btd"], case.config.epsilon)
    _die(case.name)
    _disturb(case)
    if case.name == "raise":
        raise RuntimeError("no such thing")
    if case.name == "unsupported":
        raise Unsupported("aten::made_up")
    if case.name == "random":
        return y + np.random.default_rng().standard_normal(y.shape).astype(y.dtype) * 1e-12
    if case.name.startswith("buffer"):
        BUFFER[...] = y
        return BUFFER
    return {
        "nan": lambda: np.where(y > 0, np.nan, y).astype(y.dtype),
        "shape": lambda: y[:, :, :-1],
        "dtype": lambda: y.astype(np.float32),
        "nothing": lambda: None,
        "three": lambda: (y, y, y),
        "pair": lambda: (y, y),
        "objects": lambda: y.astype(object),
        "unpicklable": lambda: (value for value in y),
        "wrong": lambda: y * 1.001,
    }.get(case.name, lambda: y)()


def _die(name: str) -> None:
    if name == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "exit":
        os._exit(7)
    if name == "hang":
        time.sleep(600)
    if name == "garbage":
        print("\x00" * 5000 + "garbage on standard output")


def _disturb(case: Case) -> None:
    """Changes what a port must leave as it was."""
    match case.name:
        case "input_changed":
            case.inputs["x_btd"][0] = 0
        case "parameter_changed":
            case.parameters["scale"][0] = 0
        case "numpy_random":
            np.random.seed(0)  # noqa: NPY002
        case "python_random":
            random.random()
        case "frameworks":
            for framework in ("torch", "keras", "jax"):
                importlib.import_module(framework)
        case "torch_seed":
            sys.modules["torch"].manual_seed(0)
        case "torch_draw":
            sys.modules["torch"].rand(3)
        case "torch_dtype":
            sys.modules["torch"].set_default_dtype(sys.modules["torch"].float64)
        case "keras_floatx":
            sys.modules["keras"].config.set_floatx("float64")
        case "keras_policy":
            sys.modules["keras"].config.set_dtype_policy("mixed_bfloat16")
        case "jax_x64":
            sys.modules["jax"].config.update("jax_enable_x64", True)
