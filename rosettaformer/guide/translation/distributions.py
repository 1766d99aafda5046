"""Finds the distribution of fresh parameters: the published formula that fits them."""

import math

import numpy as np


def fitted(kernel_io: np.ndarray, fan_out: int | None = None) -> str:
    """Returns the formula of a kernel's numbers, such as `Glorot uniform, U(±√(6/(fan_in + fan_out)))`, and the measured deviation.

    kernel_io: with axes inputs, outputs. fan_out: if it is not the number of outputs. A formula fits if its deviation is within 4 % of the
    measured one; the nearest is returned.
    """
    inputs, outputs = kernel_io.shape[0], fan_out or kernel_io.shape[1]
    deviation, largest = float(kernel_io.std()), float(np.abs(kernel_io).max())
    shape = "uniform" if largest < 1.8 * deviation else "truncated normal" if largest < 2.35 * deviation else "normal"
    formulas = {
        "1/√(3 fan_in), which is U(±1/√fan_in)": (3 * inputs) ** -0.5,
        "√(2/(fan_in + fan_out)), Glorot": (2 / (inputs + outputs)) ** 0.5,
        "√(2/(fan_in + 3 fan_out)), Glorot of the fused kernel": (2 / (inputs + 3 * outputs)) ** 0.5,
        "1/√fan_in, LeCun": inputs**-0.5,
        "1/√width": kernel_io.shape[1] ** -0.5,
        "1": 1.0,
        "0.05/√3, which is U(±0.05)": 0.05 / 3**0.5,
    }
    name, expected = min(formulas.items(), key=lambda item: abs(math.log(item[1] / deviation)))
    return f"{shape}, deviation {name}" if abs(math.log(expected / deviation)) < 0.04 else f"{shape}, deviation {deviation:.3g}"
