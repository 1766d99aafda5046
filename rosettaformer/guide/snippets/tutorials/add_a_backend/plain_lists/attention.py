# region one_head
"""Attention, one head at a time."""

import math

from .parts import add, affine, softmax


def one_head(query, key, value, seen, bias=None):
    """Returns output and weights. query: t rows, key and value: s rows, seen and bias: t by s."""
    scale = 1 / math.sqrt(len(query[0])) if query else 1.0
    logits = affine([[x * scale for x in row] for row in query], list(zip(*key)))
    if bias:
        logits = add(logits, bias)
    weights = [softmax(row, there) for row, there in zip(logits, seen)]
    return affine(weights, value), weights


# region heads
def multi_head(x, memory, parameters, seen, bias=None):
    """Returns the output and each head's weights. seen and bias: per head, t by s."""
    heads = len(seen)
    groups = len(parameters["key"]["kernel"][0])
    keys = [of_head(memory, parameters["key"], group) for group in range(groups)]
    values = [of_head(memory, parameters["value"], group) for group in range(groups)]
    output, weights = None, []
    for head in range(heads):
        group = head * groups // heads  # consecutive query heads share a key head
        query = of_head(x, parameters["query"], head)
        mixed, weight = one_head(query, keys[group], values[group], seen[head], bias and bias[head])
        part = affine(
            mixed,
            parameters["output"]["kernel"][head],
            None if head else parameters["output"].get("bias"),
        )
        output = add(output, part) if output else part
        weights.append(weight)
    return output, weights


def of_head(rows, parameters, head):
    """The projection of one head; the kernel is [row][head][column]."""
    bias = parameters["bias"][head] if "bias" in parameters else None
    return affine(rows, [row[head] for row in parameters["kernel"]], bias)
