"""Training with Optax and NNX, dropout and modes, precision."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from impl_jax import weights
from impl_jax.dropout import Dropout
from impl_jax.feed_forward import FeedForward
from impl_jax.optimizer import decay_mask
from impl_jax.programs.compiled import compiled
from impl_jax.training import Trainer
from impl_jax.transformer import Transformer
from reference_numpy import sites
from reference_numpy.recipe import PAPER

from .jax_data import CLASSES, CONFIG, GPT2, LABELS, PAIR, SMOOTHING, SOURCE, TARGET
from .jax_models import differs, equals_itself, loaded, loss, right, right_gradients, same, topic, values

TRAIN, DROP, NUMBERS = map(topic, ("Training", "Dropout and modes", "Precision"))
DROPPING = CONFIG.replace(dropout_rate=0.5)
RULES = {name: getattr(optax, name) for name in ("adafactor", "adam", "adamw", "lamb", "lion", "rmsprop")}


def step(model: Transformer, optimizer: nnx.Optimizer, objective: Callable[..., jax.Array] = loss) -> jax.Array:
    value, gradients = nnx.value_and_grad(objective)(model)
    optimizer.update(model, gradients)
    return value


def trained(rule: Any, steps: int = 1, wrt: Any = nnx.Param, model: Transformer | None = None) -> Transformer:
    """The model after some steps, each one program."""
    model = model or loaded()
    optimizer, run = nnx.Optimizer(model, rule, wrt=wrt), nnx.jit(step)
    for _ in range(steps):
        run(model, optimizer)
    return model


TRAIN.works(
    "`nnx.Optimizer(model, optax.sgd(...))`: the reference's step", lambda: right_gradients(trained(optax.sgd(0.1)), -0.1, values())
)


@TRAIN.works("Optax without NNX: `optax.apply_updates` on the state of `nnx.split`, donated")
def _() -> None:
    graph, state = nnx.split(loaded())
    rule = optax.sgd(0.1)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def run(state: Any, moments: Any) -> Any:
        updates, moments = rule.update(jax.grad(lambda state: loss(nnx.merge(graph, state)))(state), moments)
        return optax.apply_updates(state, updates), moments

    right_gradients(run(state, rule.init(state))[0], -0.1, values())


@TRAIN.works(f"{len(RULES)} rules of Optax: the trained model is the reference with the parameters that it exports")
def _() -> None:
    for rule in RULES.values():
        model = trained(rule(1e-2))
        differs(model.source_embedding.table[...], values()["source_embedding.table"])
        equals_itself(model)


TRAIN.works(
    "`optax.MultiSteps` of two parts: the step of the whole",
    lambda: right_gradients(trained(optax.MultiSteps(optax.sgd(0.1), 2), 2), -0.1, values()),
)


@TRAIN.works("microbatches with `total=`: their gradients add up to those of the batch")
def _(model) -> None:
    total = int((TARGET[:, 1:] != 0).sum())
    gradients = nnx.jit(nnx.grad(lambda model, *ids: model.training_loss(*ids, SMOOTHING, total)))
    parts = [gradients(model, SOURCE[rows], TARGET[rows]) for rows in (slice(0, 2), slice(2, 4))]
    right_gradients(jax.tree.map(jnp.add, *map(nnx.state, parts)))


@TRAIN.works("weight decay by a mask: `optax.adamw(mask=decay_mask)` leaves biases, norms alone")
def _(model) -> None:
    gradients = jax.tree.map(jnp.zeros_like, nnx.state(model, nnx.Param))
    optimizer = nnx.Optimizer(model, optax.adamw(0.1, weight_decay=0.5, mask=decay_mask), wrt=nnx.Param)
    optimizer.update(model, gradients)
    for name, array in weights.export(model, CONFIG).items():
        same(array, values()[name] * (0.95 if name.endswith(("kernel", "table")) else 1))


@TRAIN.works("a schedule, clipping and `optax.inject_hyperparams`")
def _() -> None:
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 1, 10)
    chain = optax.chain(optax.clip_by_global_norm(1e9), optax.inject_hyperparams(optax.sgd)(learning_rate=schedule))
    right_gradients(trained(chain, 2), -0.1, values())  # the first step has the rate 0


@TRAIN.works("frozen parts: `wrt=nnx.All(nnx.Param, nnx.PathContains('decoder'))`")
def _() -> None:
    wrt = nnx.All(nnx.Param, nnx.PathContains("decoder"))
    model, optimizer = (model := loaded()), nnx.Optimizer(model, optax.sgd(0.1), wrt=wrt)
    optimizer.update(model, nnx.grad(loss, argnums=nnx.DiffState(0, wrt))(model))
    found = weights.export(model, CONFIG)
    assert all((found[name] != array).any() == name.startswith("decoder") for name, array in values().items() if "key.bias" not in name)
    equals_itself(model)


@TRAIN.works("frozen parts: `optax.multi_transform` with `optax.set_to_zero`")
def _() -> None:
    def labels(state: Any) -> Any:
        return jax.tree.map_with_path(lambda path, _: "still" if "encoder" in jax.tree_util.keystr(path) else "moves", state)

    found = weights.export(trained(optax.multi_transform({"moves": optax.sgd(0.1), "still": optax.set_to_zero()}, labels)), CONFIG)
    assert all((found[name] == array).all() == name.startswith("encoder") for name, array in values().items() if "key.bias" not in name)


@TRAIN.works("the loss of Optax: `softmax_cross_entropy_with_integer_labels`, masked")
def _() -> None:
    def objective(model: Transformer) -> jax.Array:
        label = TARGET[:, 1:]
        each = optax.softmax_cross_entropy_with_integer_labels(model(SOURCE, TARGET[:, :-1]), jnp.asarray(label))
        return each.sum(where=label != 0) / (label != 0).sum()

    same(objective(loaded()), loaded().training_loss(*PAIR))


@TRAIN.works("an average of the weights: `optax.incremental_update`, loaded by `nnx.update`")
def _(model) -> None:
    other = trained(optax.sgd(0.1))
    nnx.update(model, optax.incremental_update(nnx.state(other, nnx.Param), nnx.state(model, nnx.Param), 0.5))
    right_gradients(model, -0.05, values())


@TRAIN.works("`nnx.MultiMetric` in the step")
def _() -> None:
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    metrics.update(loss=loss(loaded()))
    same(metrics.compute()["loss"], loss(loaded()))


@TRAIN.works("an encoder-only model: `nnx.Optimizer` on `model.classification_loss`")
def _() -> None:
    model = loaded(CLASSES)
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    before = step(model, optimizer, lambda model: model.classification_loss(SOURCE, LABELS))
    assert model.classification_loss(SOURCE, LABELS) < before
    equals_itself(model, SOURCE)


@TRAIN.works("an encoder-only model: a loss of Optax on `model(source)`")
def _() -> None:
    model = loaded(CLASSES)
    of = lambda model: optax.softmax_cross_entropy_with_integer_labels(model(SOURCE), LABELS).mean()  # noqa: E731
    found, expected = nnx.grad(of)(model), nnx.grad(lambda model: model.classification_loss(SOURCE, LABELS))(model)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        same(one, other)


@TRAIN.works("`Trainer(config, recipe, parameters)`, of both stacks, a decoder-only model and an encoder-only model")
def _() -> None:
    for config, given in ((CONFIG, PAIR), (GPT2, (None, TARGET)), (CLASSES, (SOURCE, LABELS))):
        run = Trainer(config, PAPER.replace(warmup=10), values(config))
        first = float(run.train_step(*given))
        assert float(run.train_step(*given)) < first


@TRAIN.refused("`Trainer` of an encoder with a masked-language head", "training an encoder-only model needs classes and no masked")
def _() -> None:
    config = CLASSES.replace(classes=0, masked_language_head=True)
    Trainer(config, PAPER, values(config))


@DROP.works("`model.eval()`: nothing is dropped; `model.train()`: something is, under `nnx.jit` with other masks every time")
def _() -> None:
    model, run = loaded(DROPPING), nnx.jit(lambda model: model(*PAIR))
    right(run(model))
    model.train()
    first = run(model)
    differs(first, run(model))


@DROP.works("`compiled(model)` made in training, then `model.eval()`", sample=True)
def _() -> None:
    model = loaded(DROPPING)
    model.train()
    call = compiled(model)
    differs(call(*PAIR), call(*PAIR))
    model.eval()
    right(call(*PAIR))


@DROP.works("`nnx.view(model, deterministic=True)` beside the model in training")
def _() -> None:
    model = loaded(DROPPING)
    model.train()
    right(nnx.view(model, deterministic=True)(*PAIR))


@DROP.works("`nnx.reseed`: the same masks again")
def _() -> None:
    model = loaded(DROPPING)
    model.train()
    found = []
    for _ in range(2):
        nnx.reseed(model, dropout=1, default=1)
        found.append(nnx.jit(lambda model: model(*PAIR))(model))
    same(*found)


@DROP.works("keep masks that are given, by site: the reference's numbers")
def _() -> None:
    keep = sites.draw(DROPPING, *SOURCE.shape, TARGET.shape[1], np.random.default_rng(2))
    right(loaded(DROPPING)(*PAIR, keep=keep), DROPPING, keep=keep)


@DROP.works("`nnx.split_rngs` over an ensemble: each draws its own masks")
def _() -> None:
    model = loaded(DROPPING)
    model.train()
    axes = nnx.StateAxes({nnx.RngState: 0, ...: None})
    draw = nnx.split_rngs(splits=2)(nnx.vmap(lambda layer, x: layer.draw(x.shape), in_axes=(axes, 0)))
    first, second = draw(model.encoder.embedding_dropout, jnp.ones((2, 64)))
    assert (first != second).any()


@DROP.stock("random dropout under `jax.jit` of a function that takes the model", "every call draws the same masks", sample=True)
def _() -> None:
    call, x = jax.jit(lambda layer, x: layer(x)), jnp.ones((4, 16))
    for layer in (Dropout(0.5, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(0))):
        same(call(layer, x), call(layer, x))
        differs(layer(x), layer(x))


@DROP.refused("random dropout under `jax.jit(model)`", "Cannot mutate RngCount")
def _() -> None:
    model = loaded(DROPPING)
    model.train()
    jax.jit(model)(*PAIR)


@NUMBERS.works("float64 under `jax.enable_x64`, to 1e-9")
def _() -> None:
    with jax.enable_x64(True):
        model = loaded(param_dtype=jnp.float64)
        weights.load(model, values(dtype=np.float64), CONFIG)
        right(model(*map(jnp.asarray, PAIR)), arrays=values(dtype=np.float64), tolerance=1e-9)


@NUMBERS.stock("`param_dtype=jnp.float64` without x64", "float32 parameters, and JAX's warning")
def _() -> None:
    for make in (FeedForward, nnx.Linear):
        arguments = (CONFIG,) if make is FeedForward else (8, 12)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            layer = make(*arguments, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        assert "float64 is not available" in str(caught[0].message) or "float64 requested" in str(caught[0].message)
        assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(layer, nnx.Param))} == {jnp.dtype(jnp.float32)}


@NUMBERS.works("`dtype=jnp.bfloat16` with float32 parameters: to bfloat16's digits, gradients in float32", sample=True)
def _() -> None:
    model = loaded(dtype=jnp.bfloat16)
    logits = model(*PAIR)
    assert logits.dtype == jnp.bfloat16
    right(logits, tolerance=0.25)
    assert nnx.jit(nnx.grad(loss))(model)["logits"]["bias"][...].dtype == jnp.float32


@NUMBERS.works("a state cast by `jax.tree.map(lambda x: x.astype(jnp.bfloat16), ...)`")
def _(model) -> None:
    nnx.update(model, jax.tree.map(lambda x: x.astype(jnp.bfloat16), nnx.state(model, nnx.Param)))
    logits = model(*PAIR)
    assert logits.dtype == jnp.bfloat16
    right(logits, tolerance=0.25)


@NUMBERS.works("`jax.default_matmul_precision('highest')`")
def _() -> None:
    with jax.default_matmul_precision("highest"):
        right(nnx.jit(loaded())(*PAIR))
