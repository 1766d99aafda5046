"""The named numbers that a factor may equal: plain numbers, sizes, their roots and reciprocals."""

import math

import numpy as np

from ...case import Case

PLAIN = {"-1": -1.0, "2": 2.0, "1/2": 0.5, "-2": -2.0, "3": 3.0, "4": 4.0, "sqrt(2)": 2**0.5, "1/sqrt(2)": 0.5**0.5}


def named_numbers(case: Case) -> dict[str, float]:
    """Plain numbers, sizes of the config, roots, reciprocals and input lengths; no 0 and 1."""
    config = case.config
    sizes = {
        "key_size": config.key_size, "model_width": config.model_width, "heads": config.heads, "value_size": config.value_size,
        "key_value_heads": config.key_value_heads, "heads * key_size": config.heads * config.key_size,
        "feed_forward_width": config.feed_forward_width, "encoder_layers": config.encoder_layers, "decoder_layers": config.decoder_layers,
        **_lengths(case),
    }  # fmt: skip
    found = dict(PLAIN)
    for name, size in sizes.items():
        of = f"({name})" if " " in name else name
        found |= {f"sqrt({name})": math.sqrt(size), name: float(size)}
        if size:
            found |= {f"1/sqrt({name})": 1 / math.sqrt(size), f"1/{of}": 1 / size}
            found |= {f"(1 - 1/sqrt({name}))": 1 - 1 / math.sqrt(size), f"(sqrt({name}) - 1)": math.sqrt(size) - 1}
    found |= {f"({name} - 1)": float(sizes[name] - 1) for name in ("heads", "encoder_layers", "decoder_layers")}
    for name, of in (("model_width", "model_width"), ("value_size", "value_size"), ("heads * key_size", "(heads * key_size)")):
        found[f"sqrt(key_size / {of})"] = math.sqrt(config.key_size / sizes[name])
    if 0 < config.dropout_rate < 1:
        found |= {"1 - dropout_rate": 1 - config.dropout_rate, "1/(1 - dropout_rate)": 1 / (1 - config.dropout_rate)}
    return {name: number for name, number in found.items() if number not in (0.0, 1.0)}


def _lengths(case: Case) -> dict[str, int]:
    """The lengths of batch and sequences."""
    for name, value in case.inputs.items():
        if isinstance(value, np.ndarray) and value.ndim >= 2 and name.rpartition("_")[2] in ("btd", "bsd", "bthk", "source", "target"):
            return {"the batch size": value.shape[0], "the sequence length": value.shape[1]}
    return {}
