"""Small models of the exportable families, and the reference's outputs: full sequences and cached decoding steps."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import flat
import numpy as np
from backends import random_parameters

from reference_numpy import TransformerConfig, cache, parameters, preset
from reference_numpy.rotary_scaling import RotaryScaling

LENGTH, SPLITS = 10, (5, 1, 1, 3)
_SMALL = {
    "source_vocabulary": 19, "target_vocabulary": 19, "model_width": 8, "heads": 2, "key_value_heads": 2, "key_size": 4, "value_size": 4,
    "feed_forward_width": 12,
}  # fmt: skip
_GROUPED = _SMALL | {"key_value_heads": 1, "decoder_layers": 2}
_EXPERTS = {"experts": 5, "experts_per_token": 2, "expert_width": 6}
_CLIPPED = {
    "activation": "gelu_sigmoid", "gate_limit": 0.5, "hidden_offset": 1.0, "query_key_value_clip": 0.5, "feed_forward_bias": True,
    "attention_sinks": "all",
}  # fmt: skip
_MODERN = {
    "positions": "rotary", "max_positions": 0, "segments": 2, "norm_placement": "pre", "first_norm": False, "final_norm": True,
    "norm_offset": False, "gated_feed_forward": True, "layer_pattern": ("global", "local"), "window": 2, "head_bias": False,
    "activation": "gelu_tanh", "epsilon": 1e-3,
}  # fmt: skip
_SCALED = {"kind": "longrope", "original_length": 6, "short_factors": (1.0, 1.3), "long_factors": (2.0, 5.0), "attention_factor": 1.1}
MODELS: Mapping[str, TransformerConfig] = MappingProxyType(
    {
        "paper": preset("paper_base", **_SMALL, encoder_layers=1, decoder_layers=2),
        "bert": preset("bert_base", **_SMALL, encoder_layers=2, max_positions=32, classes=3),
        "modernbert": preset("bert_base", **_SMALL, **_MODERN, encoder_layers=3, classes=3),
        "gpt2": preset("gpt2_small", **_SMALL, decoder_layers=2, max_positions=32),
        "llama": preset("llama31_8b", **_GROUPED),
        "gemma3": preset("gemma3_1b", **_GROUPED, window=3, layer_pattern=("local", "global")),
        "phi3": preset("llama2_7b", **_GROUPED, rotary_scaling=RotaryScaling(**_SCALED)),
        "mixtral": preset("llama2_7b", **_GROUPED, **_EXPERTS),
        "gpt_oss": preset("llama2_7b", **_GROUPED, **_EXPERTS, **_CLIPPED, router_scores="chosen_softmax", router_bias=True),
        "opt": preset("gpt2_small", **_SMALL, decoder_layers=1, max_positions=32, position_offset=2, position_start="row"),
    }
)
Arrays = Mapping[str, np.ndarray]
Call = Callable[[str, dict[str, np.ndarray]], Mapping[str, np.ndarray]]


@functools.cache
def values(name: str, dtype: str = "float64") -> dict[str, np.ndarray]:
    """Returns the parameters of a model."""
    return random_parameters(MODELS[name], dtype)


def inputs(name: str, rows: int = 3, length: int = LENGTH, ids: str = "int64") -> dict[str, np.ndarray]:
    """Returns the inputs of `forward`: row 2 is left-padded, the last row right-padded; of more than three rows, the third is empty."""
    config, rng = MODELS[name], np.random.default_rng(7)
    found: dict[str, np.ndarray] = {}
    for side, layers in (("source", config.encoder_layers), ("target", config.decoder_layers)):
        if layers:
            size = length + (side == "source" and bool(config.decoder_layers))
            mask = np.ones((rows, size), bool)
            if size > 2 and rows > 1:
                mask[1, :2], mask[-1, -2:] = False, False
                mask[2 : max(2, rows - 1)] = False
            found[side] = rng.integers(1, 19, (rows, size)).astype(ids)
            found[f"{side}_mask_{'bs' if side == 'source' else 'bt'}"] = mask
    if config.segments:
        found["segment_bs"] = rng.integers(0, config.segments, (rows, length)).astype(ids)
    return found


def wanted(name: str, given: Arrays) -> dict[str, np.ndarray]:
    """Returns the output of the reference's `forward`."""
    config, nested = MODELS[name], parameters.nest(values(name))
    if config.decoder_layers:
        own = (given.get(one) for one in ("source", "target", "source_mask_bs", "target_mask_bt"))
        return {"logits_btv": flat.transformer(nested, config, *own)}
    own = {one: given[one] for one in ("source", "source_mask_bs", "segment_bs")}
    return {
        "hidden_bsd": flat.encode(nested, config, **own),
        "pooled_bd": flat.pool(nested, config, **own),
        "classes_bc": flat.classify(nested, config, **own),
        "logits_bsv": flat.masked_language_logits(nested, config, **own),
    }


def wanted_steps(name: str, given: Arrays, splits: Sequence[int]) -> np.ndarray:
    """Returns the logits of the reference's decoding steps, whose rotations depend on the length read so far."""
    config, nested = MODELS[name], parameters.nest(values(name))
    memory = flat.encode(nested, config, given["source"], given["source_mask_bs"]) if "source" in given else None
    return cache.decode_in_steps(nested, config, given["target"], memory, splits, given.get("source_mask_bs"), given["target_mask_bt"])


def stepped(name: str, call: Call, given: Arrays, splits: Sequence[int], dtype: str = "float64") -> np.ndarray:
    """Returns the logits of a file's decoding steps. call: runs a function of the file on inputs by name."""
    config, state = MODELS[name], {}
    if config.cross_attention:
        source = {one: given[one] for one in ("source", "source_mask_bs")}
        found = call("encode", dict(source))
        state = {"source_mask_bs": given["source_mask_bs"]} | {one: found[one] for one in found if one.startswith("cross_")}
    empty = config.decoder_layers, len(given["target"]), 0, config.key_value_heads
    state |= {"keys_lbsgk": np.zeros((*empty, config.key_size), dtype), "values_lbsge": np.zeros((*empty, config.value_size), dtype)}
    logits = []
    for end, length in zip(itertools.accumulate(splits), splits, strict=True):
        new = {"target": given["target"][:, end - length : end], "target_mask_bs": given["target_mask_bt"][:, :end]}
        found = call("step", state | new)
        logits.append(np.asarray(found["logits_btv"]))
        state |= {one: found[one] for one in ("keys_lbsgk", "values_lbsge")}
        assert state["keys_lbsgk"].shape[2] == end
    return np.concatenate(logits, axis=1)
