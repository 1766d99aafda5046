"""The prompts of `check --like` show every change of what a built-in checkpoint computes.

`tools/mutants.py` makes the changes.
"""

import dataclasses
import fnmatch
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mutants
import numpy as np
import pytest
from kinds import every
from mutants import DTYPE, ENOUGH, Asked, Change

from rosettaformer.files.checkpoints.hugging_face import new
from rosettaformer.judge.compare import compare
from rosettaformer.judge.expectation import components, tolerance
from rosettaformer.judge.expectation.patching import patched
from rosettaformer.judge.suite.like_folders import cases_of


@functools.cache
def _asked(name: str) -> Asked:
    with mutants.of_family(name) as asked:
        return asked


def _patching(**replaces: Callable) -> Change:
    (name,) = replaces
    return Change("code", name, lambda: patched({name.replace("__", "."): replaces[name]}))


def _turned(original: Callable, *given: Any) -> np.ndarray:
    """The share of each frequency that is kept, with the ends of the ramp exchanged."""
    kept_j = original(*given)
    return np.where((kept_j > 0) & (kept_j < 1), 1 - kept_j, kept_j)


RAMPS, ENCODERS = ("llama", "llama-yarn", "qwen3-yarn", "olmo3", "exaone4"), ("bert", "distilbert")


@pytest.mark.parametrize("name", RAMPS)
def test_a_ramp_with_its_ends_exchanged_shows(name: str) -> None:
    assert _asked(name).killing(_patching(rotary__kept=_turned))


PATTERNS = ("layer_types", "no_rope_layers", "attention_types", "attention_layers")
USUAL = {"gpt_neo": {"attention_types": [[["global", "local"], 2]]}}  # the class's own pattern is for 24 layers


@pytest.mark.parametrize("name", [name for name in new.names() if not {*PATTERNS}.isdisjoint(new._said(name, "tiny", {}))])
def test_the_usual_pattern_of_layers_shows(name: str) -> None:
    """A port that ignores the entry has the pattern that the family has without it."""
    said = {entry: value for entry, value in new._said(name, "tiny", {}).items() if entry not in PATTERNS}
    config = new._config(new.family_of(name), said | USUAL.get(name, {}))
    assert _asked(name).killing(Change("numbers", name, changed=functools.partial(dataclasses.replace, config=config)))


@pytest.mark.parametrize("name", every(4, ["qwen3", "gpt2", "bert", "glm4_moe", "marian"]))
def test_layers_in_text_order_show(name: str, tmp_path: Path) -> None:
    case = next(case for case in cases_of(name, tmp_path, ["float32"]) if case.name == "deep").at("float32")
    layers = case.config.encoder_layers or case.config.decoder_layers
    order = sorted(map(str, range(layers)))
    shapes = {name: array.shape for name, array in case.parameters.items()}
    moved = {name: re.sub(r"(?<=layers\.)\d+", lambda found: order[int(found[0])], name) for name in shapes}
    values = {name: np.asarray(case.parameters[other if shapes.get(other) == shapes[name] else name]) for name, other in moved.items()}
    expected = tolerance.expect(case)["output"]
    assert compare(expected, components.answer(case)["output"]).excess <= 1
    assert compare(expected, components.answer(dataclasses.replace(case, parameters=values))["output"]).excess >= ENOUGH


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("words", [words for words in mutants.INFERRED if "id 0" in words or "columns" in words])
def test_masks_and_columns_that_are_inferred_show(name: str, words: str) -> None:
    assert _asked(name).killing(Change("inputs", words, changed=mutants.INFERRED[words]))


def test_a_change_that_no_case_shows_survives() -> None:
    """A window is longer than the prompt `short`."""
    every_one = _asked("mistral")
    short = Asked([case for case in every_one.cases if case.name == "short"])
    hidden = {*_gaps(short, _of_windows(short))}
    assert hidden and hidden <= {change.key for change in _of_windows(every_one) if every_one.killing(change)}


def _of_windows(asked: Asked) -> Iterator[Change]:
    moved = "mask.window_mask: np.abs(query_t1 - np.arange(source_length)) < window -> np.abs(*) <= window"
    return (change for change in mutants.code(asked) if fnmatch.fnmatchcase(change.key, moved))


@pytest.mark.conformance
@pytest.mark.parametrize("name", new.names())
def test_every_change_shows(name: str) -> None:
    with mutants.of_family(name) as asked:
        assert _gaps(asked, mutants.changes(asked)) == []


@pytest.mark.conformance
@pytest.mark.parametrize(
    "name", [name for name in components.COMPONENTS if not components.forward_of(name) and name not in components.SEARCHES]
)
def test_every_change_of_a_component_shows(name: str) -> None:
    asked = mutants.of_component(name)
    assert _gaps(asked, mutants.code(asked)) == []


def _gaps(asked: Asked, changes: Iterator[Change]) -> list[str]:
    return [change.key for change, killer, rule in mutants.survivors(asked, changes) if not (killer or rule)]


@pytest.mark.parametrize("name", ["llama-dynamic", "phi3"])
def test_steps_pass_the_original_length_one_by_one(name: str) -> None:
    """Keys keep their first rotation, so the logits of the whole text at once miss the tolerance."""
    steps = next(case for case in _asked(name).cases if case.name == "medium_steps")
    original = steps.config.layer_kind(0).scaling.original_length
    assert original is not None and {original, original + 1} <= {*np.cumsum(steps.inputs["splits"])}
    inputs = {"source": None} | {key: value for key, value in steps.inputs.items() if key not in ("splits", "memory_bsd")}
    at_once = components.answer(dataclasses.replace(steps, component="transformer", inputs=inputs))["output"]
    assert compare(tolerance.expect(steps.at(DTYPE))["output"], at_once.astype(DTYPE)).excess > ENOUGH
