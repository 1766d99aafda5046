"""Bugs of routed models that no list holds are named by rules that rewrite the reference's own code and parameters."""

import ast
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kinds import every
from test_readings import planted

from reference_numpy import TransformerConfig, feed_forward
from rosettaformer.judge.catalogue.alteration import on_arguments, on_result
from rosettaformer.judge.diagnosis.evidence import Search
from rosettaformer.judge.diagnosis.hypotheses import code
from rosettaformer.judge.diagnosis.hypotheses.steps import InSteps

Array = np.ndarray
Altered = Callable[[TransformerConfig], dict[str, Callable[..., Any]]]


def _at(weight_btx: Array, ids: Callable[[Array], Array]) -> Array:
    """The weights of every token, largest first, at other experts: a function of the chosen ones."""
    found, count = np.zeros_like(weight_btx), int((weight_btx[0, 0] != 0).sum())
    best = np.argsort(-weight_btx, axis=-1)[..., :count]
    for place in np.ndindex(*weight_btx.shape[:2]):
        found[place][ids(best)[place]] = np.sort(weight_btx[place])[::-1][:count]
    return found


def _capacity(weight_btx: Array) -> Array:
    """Every expert has room for 1.25 times its share of the tokens, in their order."""
    flat = weight_btx.reshape(-1, weight_btx.shape[-1]).copy()
    room = math.ceil(1.25 * np.count_nonzero(flat) / flat.shape[1])
    for column in flat.T:
        column[np.flatnonzero(column)[room:]] = 0
    return flat.reshape(weight_btx.shape)


def _of_hidden(config: TransformerConfig) -> dict[str, Callable[..., Any]]:
    size = config.model_width // config.heads

    def frequencies(original: Any, rotary: int, base: float, scaling: Any, length: int, dtype: Any = np.float64) -> Array:
        return (float(base) ** (-np.arange(0, rotary, 2) / size)).astype(dtype)

    return {"rotary.rotary_frequencies": frequencies}


def _clamped_last(original: Any, gate_btf: Array, linear_btf: Array, name: str, gate: Any = None) -> Array:
    limit = gate.limit
    return feed_forward.activation(np.minimum(gate_btf, limit), name) * np.clip(linear_btf + gate.offset, -limit, limit)


def _ramp(original: Any, size: int, base: float, scaling: Any, frequency_j: Array) -> Array:
    first, last = (
        size * math.log(scaling.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (scaling.beta_fast, scaling.beta_slow)
    )
    first, last = max(first, 0), min(last, size - 1)
    return 1 - np.clip((2 * np.arange(size // 2) - first) / (last - first), 0, 1)


def _ring(original: Any, target: int, source: int, window: int) -> Array:
    """A chunk has overwritten the keys that its first tokens need."""
    mask = original(target, source, window)
    return mask & (np.arange(source) >= source - window) if 1 < target < source else mask


def _grouped(sink_h: Array | None, groups: int) -> Array | None:
    return None if sink_h is None else sink_h.reshape(-1, groups).T.ravel()


# name -> the family, the component, its cases, part of the id, what the port does
WHOLE, STEPS = ("transformer", ("short", "batch", "left_padding")), ("decode_in_steps", ("steps", "medium_steps"))
PLANTED: dict[str, tuple[str, tuple[str, tuple[str, ...]], str, Altered]] = {
    "indices sorted, weights not": (
        "mixtral", WHOLE, "are sorted", lambda config: {"experts.router": on_result(lambda w: _at(w, np.sort))},
    ),
    "capacity": ("mixtral", WHOLE, "1.25 times", lambda config: {"experts.router": on_result(_capacity)}),
    "exponents of another size": ("mixtral", WHOLE, "config.model_width // config.heads instead", _of_hidden),
    "heads of the sinks": ("gpt_oss", WHOLE, "self_attention.sink=", lambda config: {
        "attention.beside_sink": on_arguments(sink_h=lambda sink_h: _grouped(sink_h, config.key_value_heads))}),
    "clamped after the offset": ("gpt_oss", WHOLE, "feed_forward.gated: offset_by", lambda config: {"feed_forward.gated": _clamped_last}),
    "a ramp over features": ("gpt_oss", WHOLE, "rotary.kept: np.arange(0, size, 2)", lambda config: {"rotary.kept": _ramp}),
    "experts of one row": (
        "mixtral", STEPS, "of the first row", lambda config: {"experts.router": on_result(
            lambda w: _at(w, lambda ids: np.broadcast_to(ids[:1], ids.shape)) if w.shape[1] == 1 else w)},
    ),
    "the first position in a step": ("llama", STEPS, "first token's entry", lambda config: {
        "cache.positions": on_result(lambda position_bt: np.repeat(position_bt[:, :1], position_bt.shape[1], axis=1))}),
    "a ring buffer": ("gpt_oss", STEPS, "last token's entry", lambda config: {"mask.window_mask": _ring}),
}  # fmt: skip


@pytest.mark.parametrize("name", every(4, PLANTED))
def test_a_bug_of_a_routed_model_is_named_by_a_rule(name: str) -> None:
    family, (component, cases), id_, altered = PLANTED[name]
    evidence = planted(family, names=cases, component=component, altering=altered)
    assert evidence.failing
    found = Search(evidence).explain(located=False)
    assert len(found) == 1 and id_ in found[0][0].id, [one.id for combination in found for one in combination]
    assert isinstance(found[0][0], InSteps) == (name in ("experts of one row", "a ring buffer"))


def _paired(pair: tuple[int, int]) -> int:
    return (pair, 1)[0][1]


def test_a_change_that_python_warns_of_is_silent() -> None:
    function = code.Function("mask._paired", _paired)
    (index,) = [index for index, place in enumerate(function.places) if ast.unparse(place[-1]) == "0"]
    with pytest.warns(SyntaxWarning) as found:
        warnings.warn("one that is heard", SyntaxWarning, stacklevel=1)
        function.with_(index, ast.parse("pair, 1", mode="eval").body)
    assert len(found) == 1
