# region start
"""Small parts. A row is a list of numbers, rows a list of such lists."""

import math
from operator import mul


def affine(rows, kernel, bias=None):
    """x W + b"""
    columns = list(zip(*kernel))
    bias = bias or [0.0] * len(columns)
    return [[sum(map(mul, row, column)) + b for column, b in zip(columns, bias)] for row in rows]


def add(rows, others):
    return [[a + b for a, b in zip(row, other)] for row, other in zip(rows, others)]


def softmax(row, seen):
    """Softmax over the visible entries; all 0 if none is visible."""
    shown = [x for x, there in zip(row, seen) if there and x > -math.inf]
    if not shown:
        return [0.0] * len(row)
    largest = max(shown)
    powers = [math.exp(x - largest) if there else 0.0 for x, there in zip(row, seen)]
    total = math.fsum(powers)
    return [power / total for power in powers]


def softmax_vjp(row, seen, cotangent):
    weights = softmax(row, seen)
    mean = math.fsum(map(mul, weights, cotangent))
    return [weight * (g - mean) for weight, g in zip(weights, cotangent)]


# region norm
def layer_norm(rows, parameters, epsilon):
    return [normed(row, parameters["scale"], parameters["offset"], epsilon) for row in rows]


def normed(row, scale, offset, epsilon):
    mean = math.fsum(row) / len(row)
    centred = [x - mean for x in row]
    deviation = math.sqrt(math.fsum(x * x for x in centred) / len(row) + epsilon)
    return [x / deviation * s + o for x, s, o in zip(centred, scale, offset)]


CURVES = {
    "relu": lambda x: max(x, 0.0),
    "gelu_erf": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "gelu_sigmoid": lambda x: 0.5 * x * (1 + math.tanh(0.851 * x)),
}


def feed_forward(rows, parameters, activation):
    hidden = affine(rows, parameters["hidden"]["kernel"], parameters["hidden"]["bias"])
    active = [[CURVES[activation](x) for x in row] for row in hidden]
    return affine(active, parameters["output"]["kernel"], parameters["output"]["bias"])
