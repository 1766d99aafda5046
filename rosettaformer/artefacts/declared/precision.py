"""Numbers that a graph computes in fewer digits than its weights have."""

import math
from collections.abc import Iterator

import numpy as np

from .evidence import Evidence, Finding

_BITS = {"float64": 64, "double": 64, "float": 32, "float32": 32, "float16": 16, "bfloat16": 16}
SHOWN = 3


def findings(evidence: Evidence) -> Iterator[Finding]:
    """Yields conversions to a dtype that is narrower than every weight, and float32's numbers in a graph of float64."""
    weights = [_BITS[weight.dtype] for weight in evidence.constants.weights.values() if weight.dtype in _BITS]
    narrowest = min(weights, default=0)
    casts = [(place, "float32" if to == "float" else to) for place, to in evidence.constants.casts if _BITS.get(to, 64) < narrowest]
    for dtype in dict.fromkeys(dtype for _, dtype in casts):
        places = [*dict.fromkeys(place for place, to in casts if to == dtype)]
        more = f" and {len(places) - SHOWN} more places" * (len(places) > SHOWN)
        held = f"float{narrowest}"
        yield Finding("precision", f"the graph's weights are {held}, and it converts to {dtype} in {', '.join(places[:SHOWN])}{more}")
    if narrowest == 64:
        yield from _float32_numbers(evidence)


def _float32_numbers(evidence: Evidence) -> Iterator[Finding]:
    config = evidence.config
    scale = config.key_size**-0.5 if config.score_scale is None else config.score_scale
    known = {"the attention's scale": scale, "the root of the width": math.sqrt(config.model_width), "epsilon": config.epsilon}
    known |= {"GELU's 0.044715": 0.044715, "GELU's sqrt(2 / pi)": math.sqrt(2 / math.pi)} if config.activation == "gelu_tanh" else {}
    for name, number in known.items():
        rounded = float(np.float32(number))
        if rounded != number and evidence.floats(rounded) and not evidence.floats(number):
            words = f"the graph's weights are float64, and {name} is {rounded!r}, as float32 rounds {number!r}"
            yield Finding("precision", words)
