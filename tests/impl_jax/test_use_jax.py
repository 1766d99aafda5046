"""Everyday use of the JAX port: calls, training, dropout, files and precision."""

import copy
import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from user_models import ALONE, CONFIG, GPT2, MASK, PAIR, Models, differs, reference, same, values

from impl_jax import weights
from impl_jax.programs.compiled import compiled
from impl_jax.transformer import Transformer

MODELS, SMOOTHING, CLOSE = Models("jax"), 0.1, 2e-4
loaded, right = functools.partial(MODELS.loaded, dtype="float32"), MODELS.right
pytestmark = pytest.mark.conformance
SOURCE, TARGET = PAIR
DROPPING = CONFIG.replace(dropout_rate=0.5)


def loss(model: Any) -> Any:
    return model.training_loss(*PAIR, smoothing=SMOOTHING)


def step(model: Any, optimizer: Any) -> None:
    optimizer.update(model, nnx.grad(loss)(model))


def trained(rule: Any) -> Any:
    model = loaded()
    nnx.jit(step)(model, nnx.Optimizer(model, rule, wrt=nnx.Param))
    return model


def test_a_model_takes_arrays_and_masks() -> None:
    model = loaded()
    for dtype in (np.int32, np.int64, np.uint8):
        same(model(SOURCE.astype(dtype), jnp.asarray(TARGET, jnp.int32)), reference(), CLOSE)
    right(model, source_mask_bs=MASK, target_mask_bt=TARGET > 3)
    right(loaded(GPT2))


@pytest.mark.parametrize("config", ALONE)
def test_an_encoder_only_model_is_called_and_compiled(config: Any) -> None:
    model = loaded(config)
    right(model, nnx.jit(model))
    right(model, compiled(model), segment_bs=SOURCE % 2)


@pytest.mark.parametrize("rule", ["adafactor", "adamw", "lion"])
def test_optimizers_train_a_tied_model(rule: str) -> None:
    model = trained(getattr(optax, rule)(1e-2))
    differs(model.source_embedding.table[...], values()["source_embedding.table"])
    right(model)


def test_modes_and_seeds_decide_what_drops() -> None:
    model, run = loaded(DROPPING), nnx.jit(lambda model: model(*PAIR))
    same(run(model), reference(), CLOSE)
    model.train()
    call, found = compiled(model), []
    differs(run(model), run(model))
    differs(call(*PAIR), call(*PAIR))
    for _ in range(2):
        nnx.reseed(model, dropout=1, default=1)
        found.append(run(model))
    same(*found)
    same(nnx.view(model, deterministic=True)(*PAIR), reference(), CLOSE)
    model.eval()
    same(call(*PAIR), reference(), CLOSE)


def test_an_ensemble_draws_masks_of_its_own() -> None:
    model = loaded(DROPPING)
    model.train()
    axes = nnx.StateAxes({nnx.RngState: 0, ...: None})
    draw = nnx.split_rngs(splits=2)(nnx.vmap(lambda layer, x: layer.draw(x.shape), in_axes=(axes, 0)))
    first, second = draw(model.encoder.embedding_dropout, jnp.ones((2, 64)))
    assert (first != second).any()


def test_precision_follows_the_dtypes() -> None:
    with jax.enable_x64(True):
        right(MODELS.loaded())
    model = Transformer(CONFIG, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    weights.load(model, values(dtype="float32"), CONFIG)
    model.eval()
    assert model(*PAIR).dtype == jnp.bfloat16
    right(model, tolerance=0.5)
    assert nnx.jit(nnx.grad(loss))(model)["logits"]["bias"][...].dtype == jnp.float32
    model = loaded()
    nnx.update(model, jax.tree.map(lambda x: x.astype(jnp.bfloat16), nnx.state(model, nnx.Param)))
    assert model(*PAIR).dtype == jnp.bfloat16
    right(model)


def test_copies_have_the_numbers_and_tables_of_their_own() -> None:
    model = loaded()
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), nnx.clone(model)):
        same(again(*PAIR), reference(), CLOSE)
        assert again.source_embedding.table is not model.source_embedding.table
    graph, _ = nnx.split(nnx.eval_shape(lambda: Transformer(CONFIG, rngs=nnx.Rngs(0))))
    again = nnx.merge(graph, nnx.state(model))
    again.eval()
    same(again(*PAIR), reference(), CLOSE)


def test_checkpoints_of_orbax(tmp_path: Any) -> None:
    ocp = pytest.importorskip("orbax.checkpoint")
    model, other = loaded(), loaded(seed=7)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", nnx.state(model, nnx.Param))
        checkpointer.wait_until_finished()
        nnx.update(other, checkpointer.restore(tmp_path / "state", nnx.state(other, nnx.Param)))
    same(other(*PAIR), reference(), CLOSE)
