"""Unpadding in the JAX port: a model without padding is the reference, for every pattern of it."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import unpadding_cases as cases
from backends import Backend
from test_training import CONFIG, FULL, RECIPE, UNTIED, batch, begin, bits, equals_the_reference

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")

import jax.numpy as jnp  # noqa: E402

from impl_jax import weights  # noqa: E402
from impl_jax.programs import unpadding  # noqa: E402
from impl_jax.programs.compiled import compiled, graphs  # noqa: E402
from impl_jax.programs.unpadding import Flat, unpadded  # noqa: E402
from impl_jax.transformer import Transformer  # noqa: E402
from reference_numpy import TransformerConfig, parameters, sites  # noqa: E402
from reference_numpy import transformer as reference  # noqa: E402

BACKEND = Backend("jax")
MIXED = cases.CONFIGS["post-sinusoidal-tied"]
close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-12)


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with BACKEND.wide():
        yield


@functools.cache
def loaded(config: TransformerConfig) -> Transformer:
    return BACKEND.loaded(config, cases.arrays(config))


@functools.cache
def program(config: TransformerConfig) -> tuple[Any, Any]:
    """Logits that skip padding, and loss and gradients: compiled functions of the tokens that lie flat."""
    model = loaded(config)
    graph, state, *rest = nnx.split(model, nnx.Param, ...)

    def loss(state: Any, flat: Flat, source: Any, target: Any, keep: Any) -> Any:
        return unpadding.training_loss(nnx.merge(graph, state, *rest), flat, source, target, cases.SMOOTHING, keep=keep)

    gradients = jax.jit(jax.value_and_grad(loss))
    return compiled(model, least=0), lambda *given: gradients(state, *given)


def equals(config: TransformerConfig, source: Any, target: Any, keep: Any = None) -> None:
    """Logits, loss and every gradient without padding are the reference's."""
    logits, gradients = program(config)
    expected = reference.transformer(parameters.nest(cases.arrays(config)), config, source, target, keep=keep, skip_padding=True)
    close(logits(source, target, keep=keep, skip_padding=True), expected)

    target = np.concatenate([target[:, :1], target], axis=1)  # the masks of the sites are those of all but its last token
    value, found = gradients(unpadding.of_loss(config, 0, source, target), source, target, keep)
    wanted, arrays = cases.loss_and_gradients(config, source, target, keep)
    close(value, wanted)
    graph, _, *rest = nnx.split(loaded(config), nnx.Param, ...)
    found = weights.export(nnx.merge(graph, found, *rest), config)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        close(found[name], array, err_msg=name)


@pytest.mark.parametrize("pattern", cases.PATTERNS)
def test_every_pattern_of_padding_gives_what_the_reference_gives(pattern: str) -> None:
    source, target = cases.tokens(pattern, MIXED)
    found = unpadding.of_forward(MIXED, 0, source, target, skip_padding=True)
    assert [one is None for one in found] == 2 * [pattern == "all"]
    equals(MIXED, source, target)


@pytest.mark.second
def test_operation_by_operation_padding_is_left_out_too() -> None:
    """And a target of rows beside a flat source; a function without a driver is called as it is."""
    source, target = cases.tokens("mixed", MIXED)
    model = loaded(MIXED)
    given = {"source": source, "target": target, "skip_padding": True}
    close(unpadded(model, least=0)(**given), model(**given))
    close(unpadded(model, least=0)(source, target), model(source, target))
    close(unpadded(model.training_loss, least=0)(source, target), model.training_loss(source, target))
    close(unpadded(model.encode, least=0)(source), model.encode(source))


@pytest.mark.parametrize("name", list(cases.CONFIGS)[1:])
def test_every_kind_of_model_gives_what_the_reference_gives(name: str) -> None:
    equals(cases.CONFIGS[name], *cases.tokens("mixed", cases.CONFIGS[name]))


def test_keep_masks_that_are_given_are_those_of_rows() -> None:
    config = CONFIG.replace(attention_bias=True)
    source, target = cases.tokens("mixed", config)
    keep = sites.draw(config, len(source), source.shape[1], target.shape[1], np.random.default_rng(2))
    shared = keep["encoder"]["layers"]["0"]["feed_forward"]
    shared["hidden_dropout"] = shared["hidden_dropout"][:1]  # the same for all rows
    keep["decoder"]["layers"]["0"]["feed_forward_dropout"] = np.ones((1, 1, 1), bool)
    equals(config, source, target, keep)
    shared["hidden_dropout"] = np.ones((2, 1, 1), bool)
    with pytest.raises(ValueError, match="keep must broadcast to the input"):
        program(config)[0](source, target, keep=keep)


def test_masks_that_are_given_say_what_lies_flat() -> None:
    """Of soft one-hot rows too, which hold no id."""
    source, target = cases.tokens("all", MIXED)
    mask_bs, mask_bt = (np.random.default_rng(3).random(ids.shape) < 0.5 for ids in (source, target))
    soft, model = np.eye(MIXED.source_vocabulary)[source], loaded(MIXED)
    assert all(unpadding.of_forward(MIXED, 0, soft, target, mask_bs, mask_bt, skip_padding=True))
    assert unpadding.of_forward(MIXED, 0, soft, target, skip_padding=True) == (None, None)
    expected = reference.transformer(parameters.nest(cases.arrays(MIXED)), MIXED, soft, target, mask_bs, mask_bt, skip_padding=True)
    close(compiled(model, least=0)(soft, target, mask_bs, mask_bt, skip_padding=True), expected)
    with pytest.raises(ValueError, match="source mask must have"):
        compiled(model, least=0)(soft, target, mask_bs[:, 1:])


@pytest.mark.second
def test_rows_of_padding_are_zeros_also_where_nothing_lies_flat() -> None:
    source, target = cases.tokens("mixed", MIXED)
    model = loaded(MIXED)
    wanted = compiled(model, least=0)(source, target, skip_padding=True)
    assert not wanted[target == 0].any()
    given = jax.jit(lambda source, target: model(source, target, skip_padding=True)).lower(source, target)
    assert "gather" in given.as_text()
    close(given.compile()(source, target), wanted)
    close(model(source, target, skip_padding=True), wanted)
    assert np.abs(model(source, target)[target == 0]).min() > 0


def test_a_shape_has_a_program_for_each_length_that_saves_something_and_for_the_rows() -> None:
    config = cases.CONFIGS["decoder-only"]
    model = Transformer(config, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    model.eval()
    call = compiled(model)
    target = np.ones((1, 40), int)
    rows = np.asarray(call(None, target, skip_padding=True))
    call(None, np.arange(40)[None] % 20, skip_padding=True)  # of little work, by default
    assert graphs(call) == 1
    call = compiled(model, least=0)
    np.testing.assert_array_equal(call(None, target, skip_padding=True), rows)
    assert graphs(call) == 1
    for real in range(41):
        call(None, np.where(np.arange(40) < real, target, 0), skip_padding=True)
    assert 4 <= graphs(call) <= unpadding.STEPS


@pytest.mark.second
@pytest.mark.parametrize("variant", [pytest.param((CONFIG, RECIPE), marks=pytest.mark.exhaustive), (UNTIED, FULL)], ids=["tied", "parts"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_steps_without_padding_are_the_reference_s_and_a_resumed_run_goes_on_bit_for_bit(device: str, variant: tuple[Any, Any]) -> None:
    """The parts of a batch have one flat length. On a GPU: its numbers, and their bits; without one only the program is seen."""
    run, parts = begin(BACKEND, *variant, device=device), variant[1].microbatches
    run.least, first = 0, run.state()
    found: Any = run.flat(*batch(), parts)
    assert [one.place_bt.shape for one in found] == ([(2, 2, 7), (2, 2, 5)] if parts == 2 else [(4, 7), (4, 5)])
    equals_the_reference(run, *variant)

    def after(state: dict[str, np.ndarray], *steps: int) -> dict[str, np.ndarray]:
        run.load_state(state, steps[0])
        for step in steps:
            run.train_step(*batch(step))  # with random keep masks
        return run.state()

    assert bits(after(after(first, 0, 1), 2)) == bits(after(first, 0, 1, 2))


def test_arrays_on_several_devices_are_not_brought_together() -> None:
    assert unpadding.is_known(np.ones(2))
    assert unpadding.is_known(jnp.ones(2))
    assert jax.jit(lambda x: x + unpadding.is_known(x))(0) == 0  # a traced one has no values
