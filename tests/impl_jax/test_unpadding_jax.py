"""Specifics of the JAX port without padding: single operations, programs, and arrays on several devices."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from backends import Backend
from test_unpadding import CONFIGS, TIED, arrays, close, tokens

from impl_jax.framework import program_count
from impl_jax.mask import real_rows
from impl_jax.programs import unpadding
from impl_jax.programs.compiled import compiled
from impl_jax.programs.unpadding import unpadded
from reference_numpy.rotary_scaling import RotaryScaling

BACKEND = Backend("jax")


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with BACKEND.wide():
        yield


@pytest.mark.conformance
def test_operation_by_operation_padding_is_left_out_too() -> None:
    """Also with an unflattened target and a flat source; a function without a driver is called unchanged."""
    source, target = tokens("mixed", TIED)
    model = BACKEND.loaded(TIED, arrays(TIED))
    rows = real_rows(model(source, target), target != 0)
    close(unpadded(model, least=0)(source, target, skip_padding=True), rows)
    close(unpadded(model, least=0)(source, target), model(source, target))
    close(unpadded(model.training_loss, least=0)(source, target), model.training_loss(source, target))
    close(unpadded(model.encode, least=0)(source), model.encode(source))


@pytest.mark.conformance
def test_rows_of_padding_are_zeros_also_where_nothing_lies_flat() -> None:
    source, target = tokens("mixed", TIED)
    model = BACKEND.loaded(TIED, arrays(TIED))
    wanted = compiled(model, least=0)(source, target, skip_padding=True)
    assert not wanted[target == 0].any()
    run = functools.partial(unpadding.forward, model, unpadding.Flat(), skip_padding=True)
    given = jax.jit(lambda source, target: run(source, target)).lower(source, target)
    assert "gather" in given.as_text()
    close(given.compile()(source, target), wanted)
    close(run(source, target), wanted)
    assert np.abs(model(source, target)[target == 0]).min() > 0


def test_a_shape_has_a_program_for_each_length_that_saves_something_and_for_the_rows() -> None:
    model = BACKEND.build("transformer", CONFIGS["decoder-only"], "float64")
    call = compiled(model)
    target = np.ones((1, 40), int)
    rows = np.asarray(call(None, target, skip_padding=True))
    call(None, np.arange(40)[None] % 20, skip_padding=True)  # little work, by default
    assert program_count(call.program) == 1
    call = compiled(model, least=0)
    np.testing.assert_array_equal(call(None, target, skip_padding=True), rows)
    assert program_count(call.program) == 1
    for real in (3, 20, 21, 39):  # lengths are multiples of 3, and 39 of 40 tokens count as all
        call(None, np.where(np.arange(40) < real, target, 0), skip_padding=True)
    assert program_count(call.program) == 3


def test_arrays_on_several_devices_are_not_brought_together() -> None:
    assert unpadding.is_known(np.ones(2))
    assert unpadding.is_known(jnp.ones(2))
    assert jax.jit(lambda x: x + unpadding.is_known(x))(0) == 0  # traced arrays have no values


@pytest.mark.parametrize("kind", ["none", "dynamic"])
def test_flat_tokens_rotate_by_their_positions_in_the_rows_and_by_the_length_of_these(kind: str) -> None:
    scaling = RotaryScaling(kind="dynamic", factor=2.0, original_length=3) if kind == "dynamic" else RotaryScaling()
    config = CONFIGS["decoder-only"].replace(
        positions="rotary", rotary_base=10.0, rotary_scaling=scaling, query_key_norm="head", key_size=4
    )
    model = BACKEND.loaded(config, arrays(config))
    target = np.array([[0, 0, 5, 6, 7, 0, 0, 0], [0, 4, 8, 9, 0, 0, 0, 0]])
    rows = real_rows(model(None, target), target != 0)
    close(compiled(model, least=0)(None, target, skip_padding=True), rows)
    close(unpadded(model.training_loss, least=0)(None, target), model.training_loss(None, target))
