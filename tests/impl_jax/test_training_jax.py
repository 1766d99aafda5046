"""Specifics of training in the JAX port: programs, Optax, half-precision sums, and the origin of random keep masks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from backends import Backend
from flax import nnx
from test_training import CONFIG, FULL, batch, begin

from impl_jax import embedding, feed_forward, optimizer, port

BACKEND = Backend("jax")


def test_a_shape_is_compiled_once_and_the_caller_s_settings_stay(caplog: pytest.LogCaptureFixture) -> None:
    run = begin(BACKEND, recipe=FULL)
    with jax.log_compiles():
        run.train_step(*batch())
        run.load_state(run.state(), 5)
        run.train_step(*batch(1))
    assert sum(message.startswith("Compiling jit(step) ") for message in caplog.messages) == 1
    assert not jax.config.jax_enable_x64
    with pytest.raises(ValueError, match=r"steps.*0; got -1"):
        run.load_state(run.state(), -1)
    with pytest.raises(ValueError, match=r"device.*cuda-tf32; got 'tpu'"):
        begin(BACKEND, device="tpu")


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_dtypes_add_the_gradients_of_many_positions_in_float32(dtype: Any) -> None:
    g = jnp.asarray(np.random.default_rng(0).normal(1, 0.1, (16, 512, 8)), dtype)
    exact = np.asarray(g, np.float64).sum((0, 1))
    projection = feed_forward.Projection("btd,df->btf", {"d": 4, "f": 8}, param_dtype=dtype, rngs=nnx.Rngs(0))
    head = embedding.Logits(CONFIG.replace(model_width=4, output_bias=True), 8, param_dtype=dtype, rngs=nnx.Rngs(0))
    x = jnp.zeros((16, 512, 4), dtype)
    for module in (projection, head):
        bias = nnx.grad(lambda module: (module(x) * g).astype(jnp.float32).sum())(module)["bias"].get_value()
        np.testing.assert_array_equal(bias, exact.astype(dtype))
    table = embedding.Embedding(3, 8, False, param_dtype=dtype, rngs=nnx.Rngs(0))
    ids = jnp.ones((16, 512), int)
    rows = nnx.grad(lambda table: (table(ids) * g).astype(jnp.float32).sum())(table)["table"].get_value()
    np.testing.assert_array_equal(rows[1], exact.astype(dtype))


def test_kernels_and_tables_decay_in_states_and_in_nested_mappings() -> None:
    state = nnx.state(port.components["transformer"](CONFIG.replace(attention_bias=True), jnp.float32), nnx.Param)
    for mask in (optimizer.decay_mask(state), optimizer.decay_mask(nnx.to_pure_dict(state))):
        flat = dict(jax.tree.leaves_with_path(mask))
        names = {jax.tree_util.keystr(path): decays for path, decays in flat.items()}
        assert {name for name, decays in names.items() if decays} == {name for name in names if "kernel" in name or "table" in name}
        assert set(names.values()) == {True, False}
    with pytest.raises(ValueError, match=r"limit.*0; got 0"):
        optimizer.clip_global_norm(state, 0)


def test_the_optimiser_is_one_of_optax() -> None:
    tree = {"kernel": jnp.ones(2)}
    chain = optax.chain(optax.clip(1.0), optimizer.adam(0.1, 0.9, 0.98, 1e-9))
    updates, _ = chain.update(tree, chain.init(tree), tree)
    np.testing.assert_allclose(updates["kernel"], -0.1, rtol=1e-6)
