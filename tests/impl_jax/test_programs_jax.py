"""Users' programs of the JAX port: transformations, JAX checks, and jax.export."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import checkify
from test_use_jax import CLOSE, SMOOTHING, loaded, loss, right
from user_models import CONFIG, PAIR, reference, same, tree, values

from impl_jax import weights
from impl_jax.layers import EncoderLayer
from impl_jax.programs.compiled import compiled
from reference_numpy import parameters, transformer

pytestmark = pytest.mark.conformance
INTEGERS = [jnp.asarray(x, jnp.int32) for x in PAIR]


def call(model: Any, *ids: Any) -> Any:
    return model(*ids)


PROGRAMS: dict[str, Any] = {
    "nnx.jit of the model": nnx.jit, "jax.jit of the model": jax.jit,
    "the model is an argument": lambda model: partial(nnx.jit(call), model),
    "the model is a pytree": lambda model: partial(jax.jit(call), model),
    "cached_partial": lambda model: nnx.cached_partial(nnx.jit(call), model),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_model(name: str) -> None:
    model = loaded()
    right(model, PROGRAMS[name](model))


def test_one_compiled_model_serves_several_threads() -> None:
    run = compiled(loaded())
    with ThreadPoolExecutor(4) as pool:
        for logits in pool.map(lambda _: run(*PAIR), range(4)):
            same(logits, reference(), CLOSE)


def test_gradients_of_a_module_and_of_a_state() -> None:
    graph, state = nnx.split(loaded())
    of = lambda state: loss(nnx.merge(graph, state))  # noqa: E731
    pulled = transformer.training_loss_vjp(tree(), CONFIG, *PAIR, SMOOTHING, cotangent=1.0)
    expected = parameters.flatten(pulled["parameters"])
    of_module = nnx.jit(nnx.value_and_grad(nnx.remat(loss)))(loaded())[1]
    for found in (nnx.state(of_module, nnx.Param), jax.jit(jax.grad(jax.checkpoint(of)))(state)):
        model = loaded()
        nnx.update(model, found)
        for name, array in weights.export(model, CONFIG).items():
            same(array, expected[name], CLOSE)


def test_vmap_over_batches_and_over_models() -> None:
    model = loaded()
    pair = [np.stack([ids, ids[::-1]]) for ids in PAIR]
    found = jax.jit(jax.vmap(lambda *ids: model(*ids)))(*pair)
    for one in (found[0], found[1][::-1]):
        same(one, reference(), CLOSE)
    graph, state = nnx.split(model)
    twice = lambda x: jnp.stack([x, 2 * x if jnp.issubdtype(x.dtype, jnp.floating) else x])  # noqa: E731
    found = jax.jit(jax.vmap(lambda state: nnx.merge(graph, state)(*PAIR)))(jax.tree.map(twice, state))
    same(found[1], reference(arrays={name: 2 * x for name, x in values().items()}), 5e-3)


def test_layers_that_are_stacked_are_scanned() -> None:
    @nnx.split_rngs(splits=3)
    @nnx.vmap
    def stacked(rngs: Any) -> Any:
        return EncoderLayer(CONFIG, rngs=rngs)

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def run(layer: Any, x: Any) -> Any:
        return layer(x)

    layers, x = stacked(nnx.Rngs(0)), jnp.ones((2, 3, 8)) * jnp.arange(8)
    graph, state = nnx.split(layers)
    found = run(layers, x)
    for index in range(3):
        x = nnx.merge(graph, jax.tree.map(lambda part, index=index: part[index], state))(x)
    same(found, x, 1e-5)


def test_a_model_passes_the_checks_of_jax() -> None:
    model, run = loaded(), nnx.jit(call)
    with jax.checking_leaks(), jax.numpy_dtype_promotion("strict"):
        same(compiled(model)(*INTEGERS), reference(), CLOSE)
    run(model, *INTEGERS)
    with jax.transfer_guard("disallow"):
        logits = run(model, *INTEGERS)
    same(logits, reference(), CLOSE)
    error, logits = checkify.checkify(jax.jit(lambda *ids: model(*ids)), errors=checkify.nan_checks)(*PAIR)
    error.throw()
    same(logits, reference(), CLOSE)
