"""The `--like` prompts of a built-in checkpoint reveal every change of what the checkpoint computes.

A change is a known bug, an altered operation of the reference, or another number in the config. It must show if it alters the logits
of another checkpoint of the same kind with different numbers.
"""

import contextlib
import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from kinds import every
from mutants import mutants_of
from visibility import DTYPE, ENOUGH, hidden, model

from reference_numpy.fields import is_number
from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge.catalogue import all_defects, injected
from rosettaformer.judge.catalogue.settings import all_settings
from rosettaformer.judge.compare import compare
from rosettaformer.judge.expectation import components, tolerance
from rosettaformer.judge.expectation.patching import patched

Changes = Iterator[tuple[str, Any]]
MODULES = (
    "rotary", "positional_encoding", "mask", "softmax", "normalization", "attention", "embedding", "inputs", "layers", "stacks",
    "transformer", "feed_forward", "heads", "encoder_only",
)  # fmt: skip
TOGETHER = {"qwen3-yarn": "llama-yarn", "llama-yarn": "qwen3-yarn"}  # one of the two clips the ends of its ramp


def _mutants(*functions: str) -> Changes:
    for function in functions:
        for mutant in mutants_of(function):
            yield mutant.title, functools.partial(patched, mutant.replaces)


def _not_shown(name: str, changes: Callable[[str], Changes]) -> dict[str, float]:
    """Returns the changes that neither the model nor its partner reveals."""
    found, other = hidden(name, changes(name)), TOGETHER.get(name)
    return found if not (found and other) else {title: found[title] for title in found.keys() & hidden(other, changes(other)).keys()}


@pytest.mark.conformance
def test_a_ramp_that_no_wave_is_on_is_found() -> None:
    """llama3 scaling with a large base and a small head; the built-in checkpoint has frequencies on the ramp and beyond both ends."""
    settings = {"rope_parameters.rope_theta": 500000.0, "rope_parameters.low_freq_factor": 1.0, "rope_parameters.high_freq_factor": 4.0}
    mutants = [*itertools.islice(_mutants("rotary.kept"), 36)]  # the mutants of llama3 scaling
    assert len(hidden("llama", mutants, tuple(settings.items()))) > 3
    assert not hidden("llama", mutants)


@pytest.mark.conformance
@pytest.mark.parametrize("name", new.names())
@pytest.mark.parametrize("module", MODULES)
def test_every_operation_shows(name: str, module: str) -> None:
    assert not _not_shown(name, lambda own: _mutants(*_called(own, module)))


def _called(name: str, module: str) -> list[str]:
    """Returns the functions of a reference module that the model runs."""
    own = components.module_of(module)
    functions = [key for key, value in vars(own).items() if inspect.isfunction(value) and value.__module__ == own.__name__]
    called: set[str] = set()
    case = model(name).cases[0]

    def counted(function: str, original: Callable, *args: Any, **options: Any) -> Any:
        called.add(function)
        return original(*args, **options)

    with patched({f"{module}.{function}": functools.partial(counted, function) for function in functions}):
        components.answer(case)
    return [f"{module}.{function}" for function in functions if function in called]


@pytest.mark.conformance
@pytest.mark.parametrize("name", new.names())
def test_every_alteration_of_the_catalogue_shows(name: str) -> None:
    every_one = (*all_defects().values(), *all_settings().values())
    chosen = [each for one in every_one if not (one.rounding or one.random or one.of_case) for each in one.hypotheses]
    assert not hidden(name, ((each.name, functools.partial(injected, each)) for each in chosen))


# the replaced result of one call, by the function called
AT_EACH_CALL: dict[str, dict[str, Callable[..., Any]]] = {
    "normalization.norm": {
        "an epsilon of 1e-6": lambda original, tree, config, x: original(tree, config.replace(epsilon=1e-6), x),
        "an epsilon 1.25 times as large": lambda original, tree, config, x: original(
            tree, config.replace(epsilon=1.25 * config.epsilon), x
        ),
        "no scale": lambda original, tree, config, x: original(
            tree | {"scale": np.full_like(tree["scale"], not config.norm_one_plus_scale)}, config, x
        ),
    },
    "mask.window_mask": {
        "a key more": lambda original, target, source, window: original(target, source, window + 1),
        "a key less": lambda original, target, source, window: original(target, source, window - 1),
        "no window": lambda original, *lengths: np.ones_like(original(*lengths)),
    },
    "mask.causal_mask": {"no causality": lambda original, *lengths: np.ones_like(original(*lengths))},
    "softmax.soft_cap": {
        "no cap": lambda original, x, cap: x,
        "a clip": lambda original, x, cap: np.clip(x, -cap, cap),
    },
    "rotary.rotated": {"no rotation": lambda original, x, turned, layout: x},
}  # fmt: skip


@pytest.mark.parametrize("name", every(12, new.names()))
def test_a_change_in_one_place_of_one_layer_shows(name: str) -> None:
    """Epsilon and scale of each norm, window and causality of each layer, each cap, each rotation."""
    for function, changes in AT_EACH_CALL.items():
        for title, change in changes.items():
            for call in range(_calls(name, function)):
                assert model(name).times(functools.partial(_at_call, function, call, change)) > ENOUGH, (function, title, call)


@contextlib.contextmanager
def _at_call(function: str, call: int, change: Callable[..., Any]) -> Iterator[None]:
    before = iter(range(1_000_000))

    def altered(original: Callable, *args: Any, **options: Any) -> Any:
        return change(original, *args, **options) if next(before) == call else original(*args, **options)

    with patched({function: altered}):
        yield


def _calls(name: str, function: str) -> int:
    count, case = 0, model(name).cases[0]

    def counted(original: Callable, *args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return original(*args, **options)

    with patched({function: counted}):
        components.answer(case)
    return count


SIZES = (
    "source_vocabulary", "target_vocabulary", "model_width", "heads", "key_value_heads", "key_size", "value_size", "feed_forward_width",
    "encoder_layers", "decoder_layers", "segments", "max_positions", "classes", "padding_id",
)  # fmt: skip


@pytest.mark.parametrize("name", every(12, new.names()))
def test_every_number_of_the_config_shows(name: str) -> None:
    """Increases it by two per cent, or by one; for YaRN, which rounds, by twice as much."""
    assert not _not_shown(name, _numbers)


def _numbers(name: str) -> Changes:
    for field, value in model(name).cases[0].config.to_dict().items():
        if field not in SIZES and "dropout" not in field:
            for place, changed in _near(value, 2.0 if name in TOGETHER else 1.02):
                yield f"{field}{place}", _with(**{field: changed})


def _near(value: Any, times: float) -> Iterator[tuple[str, Any]]:
    """Yields nearby values in which one entry differs, and its place."""
    if isinstance(value, dict):
        yield from ((f".{key}{place}", {**value, key: near}) for key, one in value.items() for place, near in _near(one, times))
    elif isinstance(value, list | tuple) and all(map(is_number, value)):
        yield from ((f".{index}", [*value[:index], one * times, *value[index + 1 :]]) for index, one in enumerate(value))
    elif is_number(value):
        yield "", max(value + 1, int(value * times)) if isinstance(value, int) else value * times


def _with(**fields: Any) -> Any:
    """Replaces these config fields in the models."""

    def changed(original: Callable, parameters: Any, config: Any, *args: Any, **options: Any) -> Any:
        return original(parameters, config.replace(**fields), *args, **options)

    return lambda: patched({"transformer.transformer": changed, "encoder_only.masked_language_logits": changed})


@pytest.mark.parametrize("name", ["llama-dynamic", "phi3"])
def test_steps_pass_the_original_length_one_by_one(name: str) -> None:
    """Keys keep their first rotation, so the logits of the whole text at once miss the tolerance."""
    steps = next(case for case in model(name, steps=True).cases if case.name == "medium_steps")
    original = steps.config.layer_kind(0).scaling.original_length
    assert original is not None and {original, original + 1} <= {*np.cumsum(steps.inputs["splits"])}
    inputs = {"source": None} | {key: value for key, value in steps.inputs.items() if key not in ("splits", "memory_bsd")}
    at_once = components.answer(dataclasses.replace(steps, component="transformer", inputs=inputs))["output"]
    assert compare(tolerance.expect(steps.at(DTYPE))["output"], at_once.astype(DTYPE)).excess > ENOUGH


@pytest.mark.conformance
@pytest.mark.parametrize("name", new.names())
def test_every_operation_of_a_cache_shows(name: str) -> None:
    """In steps, with partly filled and full windows."""
    if model(name).cases[0].config.decoder_layers:
        functions = ("start_cache", "decode_step", "decoder_layer_step", "positions")
        assert not hidden(name, _mutants(*(f"cache.{function}" for function in functions)), steps=True)
