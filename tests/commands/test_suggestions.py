"""Suggestions of the nearest known word for an unknown one."""

import re

import pytest
from invoke import invoke, refused

from reference_numpy.suggestions import known, nearest, unknown


@pytest.mark.parametrize(
    ("name", "found"),
    [("sofmax", "softmax"), ("SOFTMAX", "softmax"), ("norm", "layer_norm"), ("b.bias", "a.b.bias"), ("xyz", ""), ("", ""), ("so", "")],
)
def test_the_nearest_word_is_named_where_one_is_similar(name: str, found: str) -> None:
    assert nearest(name, ["softmax", "layer_norm", "a.b.bias"]) == (f" (nearest: {found})" if found else "")


def test_every_unknown_name_is_refused_with_its_nearest() -> None:
    assert known("dtype", ["float32"], ("float64", "float32")) == ("float32",)
    message = r"^dtype .* float64, float32.* got 'float31' \(nearest: float32\), 7$"
    with pytest.raises(ValueError, match=message):
        known("dtype", ["float32", "float31", 7], ("float64", "float32"), "or none")
    assert unknown("field", ["heads", "head"], {"heads": 1}) == ["unknown field 'head' (nearest: heads)"]


def test_many_and_long_words_take_no_long_time() -> None:
    assert nearest("layer_nrom", (f"word{i}" for i in range(1_000_000))) == ""
    assert nearest("x" * 10**6, ["x" * 10**6 + "y"] * 100) == ""


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["chek"], "check"),
        (["check", "torhc"], "torch"),
        (["check", "torch", "--component", "layernorm"], "layer_norm"),
        (["check", "torch", "--dtype", "bf16"], "bfloat16"),
        (["check", "torch", "--device", "cdua"], "cuda"),
        (["check", "torch", "--mode", "egaer"], "eager"),
        (["check", "--grd"], "--grad"),
        (["check", "torch", "-k", "large_meen"], "large_mean"),
        (["explain", "NMR4"], "NRM4"),
        (["list", "defcets"], "defects"),
        (["new-port", "numby", "mine"], "numpy"),
        (["train", "--out", "x", "--task", "reverse", "--preset", "tinny"], "tiny"),
        (["convert", "x", "y", "--from", "canonicl", "--to", "canonical"], "canonical"),
    ],
)
def test_every_command_names_the_nearest_word(arguments: list[str], found: str) -> None:
    text = refused(*arguments)
    assert f"(nearest: {found})" in text or re.search(f"Did you mean (one of: )?'{found}'", text), text


@pytest.mark.parametrize("arguments", [["-h"], ["check", "-h"], ["vectors", "-h"], ["vectors", "export", "-h"], ["list", "-h"]])
def test_h_is_help_everywhere(arguments: list[str]) -> None:
    found = invoke(*arguments)
    assert (found.code, found.out.startswith("Usage: rosettaformer")) == (0, True)
