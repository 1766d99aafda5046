"""Calls of models, transformations of JAX, ids out of range."""

import concurrent.futures
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import checkify
from jax.test_util import check_grads

from impl_jax.embedding import SegmentEmbedding
from impl_jax.layers import EncoderLayer
from impl_jax.loss import cross_entropy
from impl_jax.positional_encoding import PositionEmbedding
from impl_jax.programs.compiled import compiled
from impl_jax.transformer import Transformer
from reference_numpy import transformer
from reference_numpy.parameters import nest

from .jax_data import BOTH, CLASSES, CONFIG, GPT2, MASKED, PAIR, SOURCE, STATES, TARGET
from .jax_models import loaded, loss, reference, right, right_gradients, same, topic, values

CALL, IDS, TRANSFORM, CHECK = map(topic, ("Calls", "Ids out of range", "Transformations", "Checks of JAX"))


@CALL.works("`model(source, target)`, NumPy's or JAX's arrays of any integer dtype")
def _() -> None:
    for dtype in (np.int32, np.int64, np.uint8):
        right(loaded()(SOURCE.astype(dtype), jnp.asarray(TARGET, dtype if dtype == np.uint8 else np.int32)))


def call(model: Transformer, *ids: jax.Array) -> jax.Array:
    return model(*ids)


@CALL.works("`jax.jit` of `nnx.split` and `nnx.merge`; `.lower(...).compile()` before the first call")
def _() -> None:
    graph, state = nnx.split(loaded())
    run = jax.jit(lambda state, *ids: nnx.merge(graph, state)(*ids))
    for each in (run, run.lower(state, *PAIR).compile()):
        right(each(state, *PAIR))


PROGRAMS = {
    "`nnx.jit(model)(source, target)`": nnx.jit,
    "`nnx.jit` of a function that takes the model": lambda model: partial(nnx.jit(call), model),
    "`jax.jit` of a function that takes the model as a pytree": lambda model: partial(jax.jit(call), model),
    "`jax.jit(model)`": jax.jit,
    "`jax.jit` of a function that closes over the model": lambda model: jax.jit(partial(call, model)),
    "`nnx.cached_partial`": lambda model: nnx.cached_partial(nnx.jit(call), model),
}
for name, program in PROGRAMS.items():
    CALL.works(name, partial(lambda program, model: right(program(model)(*PAIR)), program), sample=program is nnx.jit)


@CALL.works("`compiled(model)`", sample=True)
def _() -> None:
    call = compiled(loaded())
    right(call(*PAIR))
    right(call(source=SOURCE, target=TARGET, skip_padding=True), skip_padding=True)


@CALL.works("masks: `model(source, target, source_mask_bs=..., target_mask_bt=...)`")
def _() -> None:
    masks = {"source_mask_bs": SOURCE > 4, "target_mask_bt": TARGET > 3}
    right(loaded()(*PAIR, **masks), **masks)


@CALL.works("one-hot rows, or mixtures of tokens, in place of ids")
def _() -> None:
    rows = np.random.default_rng(1).dirichlet(np.ones(24), SOURCE.shape)
    right(loaded()(rows.astype(np.float32), TARGET), source=rows)


CALL.works("a decoder-only model: `model(None, target)`", lambda: right(loaded(GPT2)(None, TARGET), GPT2))


@CALL.works(
    "an encoder-only model: `nnx.jit(model)(source)` and `compiled(model)(source, segment_bs=...)` give classes, logits of masked tokens, "
    "or vectors",
    sample=True,
)
def _() -> None:
    for config in (CLASSES, MASKED, STATES):
        model = loaded(config)
        right(nnx.jit(model)(SOURCE), config)
        right(compiled(model)(SOURCE, segment_bs=SOURCE % 2), config, segment_bs=SOURCE % 2)


CALL.refused(
    "`model(source)` of an encoder-only model with two heads", "with two heads is called by", lambda: loaded(BOTH)(SOURCE), sample=True
)
CALL.refused("`model(source)` of a model with a decoder", "a decoder needs a target; got None", lambda: loaded()(SOURCE), sample=True)


@CALL.works("`nnx.eval_shape`: a model without arrays, and the shape of its result")
def _() -> None:
    assert nnx.eval_shape(lambda: Transformer(CONFIG, rngs=nnx.Rngs(0))(*PAIR)).shape == (4, 5, 24)


@CALL.works("`nnx.tabulate`")
def _() -> None:
    assert "EncoderLayer" in nnx.tabulate(loaded(), *map(jnp.asarray, PAIR))


@CALL.works("one `compiled(model)` in several threads")
def _() -> None:
    call = compiled(loaded())
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for logits in pool.map(lambda _: call(*PAIR), range(8)):
            right(logits)


@IDS.works("a source or target id of -1 under `jax.jit` gives NaN, where `nnx.Embed` takes the last row", sample=True)
def _(model) -> None:
    run, last = jax.jit(call), jnp.array([[-1]])
    assert np.isfinite(jax.jit(lambda embed, ids: embed(ids))(nnx.Embed(24, 8, rngs=nnx.Rngs(0)), last)).all()
    for source, target in ((SOURCE, TARGET.copy()), (SOURCE.copy(), TARGET)):
        (target if target is not TARGET else source)[3, 1] = -1
        logits = np.asarray(run(model, source, target))
        assert np.isnan(logits[3, 1:]).all()
        same(logits[:3], reference()[:3])


@IDS.works("a segment of -1, or a position of -1, under `jax.jit` gives NaN", sample=True)
def _() -> None:
    index = jnp.array([[0, -1, 2]])
    for table in (SegmentEmbedding(3, 8, rngs=nnx.Rngs(0)), PositionEmbedding(5, 8, 2, rngs=nnx.Rngs(0))):
        rows = np.asarray(jax.jit(lambda table, index: table(index))(table, index))
        assert np.isnan(rows[0, 1]).all()
        assert np.isfinite(rows[0, ::2]).all()


@IDS.works("a label of -1 under `jax.jit` makes the loss NaN, unless its mask leaves it out", sample=True)
def _() -> None:
    logits, label = jnp.zeros((1, 2, 3)), jnp.array([[1, -1]])
    assert np.isnan(jax.jit(cross_entropy)(logits, label))
    same(jax.jit(cross_entropy)(logits, label, label >= 0), np.log(3))


@TRANSFORM.works("`nnx.grad` and `nnx.value_and_grad`")
def _() -> None:
    right_gradients(nnx.grad(loss)(loaded()))
    right_gradients(nnx.jit(nnx.value_and_grad(loss))(loaded())[1])


@TRANSFORM.works("`jax.grad` of the state, and of the model as a pytree")
def _() -> None:
    graph, state = nnx.split(loaded())
    right_gradients(jax.jit(jax.grad(lambda state: loss(nnx.merge(graph, state))))(state))
    right_gradients(jax.jit(jax.grad(loss, allow_int=True))(loaded(rngs=nnx.Rngs(params=0))))


@TRANSFORM.works("`jax.vmap` over another batch axis", sample=True)
def _(model) -> None:
    pair = [np.stack([ids, ids[::-1]]) for ids in PAIR]
    found = jax.jit(jax.vmap(lambda *ids: model(*ids)))(*pair)
    right(found[0])
    right(found[1][::-1])


@TRANSFORM.works("an ensemble: `jax.vmap` over stacked states")
def _() -> None:
    graph, state = nnx.split(loaded())
    stacked = jax.tree.map(lambda x: jnp.stack([x, 2 * x]) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.stack([x, x]), state)
    found = jax.jit(jax.vmap(lambda state: nnx.merge(graph, state)(*PAIR)))(stacked)
    right(found[0])
    right(found[1], arrays={name: 2 * array for name, array in values().items()}, tolerance=1e-3)


@TRANSFORM.works("layers made by `nnx.vmap` and run by `nnx.scan`")
def _() -> None:
    @nnx.split_rngs(splits=3)
    @nnx.vmap
    def stacked(rngs: nnx.Rngs) -> EncoderLayer:
        return EncoderLayer(CONFIG, rngs=rngs)

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def run(layer: EncoderLayer, x: jax.Array) -> jax.Array:
        return layer(x)

    layers, x = stacked(nnx.Rngs(0)), jnp.ones((2, 3, 8)) * jnp.arange(8)
    graph, state = nnx.split(layers)
    found, expected = run(layers, x), x
    for index in range(3):
        expected = nnx.merge(graph, jax.tree.map(lambda part, index=index: part[index], state))(expected)
    same(found, expected)


@TRANSFORM.works("`jax.checkpoint` and `nnx.remat` of the loss")
def _() -> None:
    graph, state = nnx.split(loaded())
    right_gradients(jax.jit(jax.grad(jax.checkpoint(lambda state: loss(nnx.merge(graph, state)))))(state))
    right_gradients(nnx.jit(nnx.grad(nnx.remat(loss)))(loaded()))


@TRANSFORM.works("`jax.jvp`, `jax.linearize` and `jax.vjp` agree")
def _() -> None:
    graph, state, rest = nnx.split(loaded(), nnx.Param, ...)
    of, tangent = (lambda state: loss(nnx.merge(graph, state, rest))), jax.tree.map(jnp.ones_like, state)
    forward, linear = jax.jit(lambda: jax.jvp(of, (state,), (tangent,))[1])(), jax.linearize(of, state)[1](tangent)
    right_gradients(jax.vjp(of, state)[1](jnp.ones(()))[0])
    same(forward, linear)


@TRANSFORM.works("`jax.hessian` of the loss by the final bias, symmetric and without a negative eigenvalue")
def _(model) -> None:
    def of(bias: jax.Array) -> jax.Array:
        model.logits.bias.set_value(bias)
        return loss(model)

    graph, bias, rest = nnx.split(model, lambda path, _: tuple(path)[:2] == ("logits", "bias"), ...)
    hessian = jax.jit(jax.hessian(lambda bias: loss(nnx.merge(graph, bias, rest))))(bias)
    matrix = np.asarray(jax.tree.leaves(hessian)[0])
    same(matrix, matrix.T, 1e-6)
    assert np.linalg.eigvalsh(matrix).min() > -1e-5


@TRANSFORM.works("`jax.test_util.check_grads` in both modes, in float64")
def _() -> None:
    with jax.enable_x64(True):
        model = loaded(param_dtype=jnp.float64)
        rows = jnp.asarray(np.eye(24)[SOURCE])
        check_grads(jax.jit(lambda rows: model(rows, TARGET)), (rows,), order=1, modes=("fwd", "rev"))


TRANSFORM.works(
    "`jax.lax.map` over batches",
    lambda model: right(jax.jit(lambda ids: jax.lax.map(lambda pair: model(*(x[None] for x in pair))[0], ids))(PAIR)),
)


@TRANSFORM.works("`nnx.fori_loop` that trains")
def _() -> None:
    def step(_: int, model: Transformer) -> Transformer:
        nnx.update(model, jax.tree.map(lambda x, g: x - 0.1 * g, nnx.state(model, nnx.Param), nnx.grad(loss)(model)))
        return model

    right_gradients(nnx.fori_loop(0, 1, step, loaded()), -0.1, values())


@CHECK.works("`jax.debug_nans`, forward and backward, with a row of padding alone")
def _() -> None:
    with jax.debug_nans(True):
        model = loaded()
        source = np.where(np.arange(4)[:, None] == 0, 0, SOURCE)
        right(model(source, TARGET), source=source)
        nnx.grad(lambda model: model.training_loss(source, TARGET))(model)


@CHECK.works("`jax.checking_leaks` and `jax.numpy_dtype_promotion('strict')`")
def _() -> None:
    ids = [jnp.asarray(x, jnp.int32) for x in PAIR]
    with jax.checking_leaks(), jax.numpy_dtype_promotion("strict"):
        right(compiled(loaded())(*ids))


@CHECK.works("`jax.transfer_guard('disallow')` around a program")
def _(model) -> None:
    run, ids = nnx.jit(call), [jnp.asarray(x, jnp.int32) for x in PAIR]
    run(model, *ids)
    with jax.transfer_guard("disallow"):
        logits = run(model, *ids)
    right(logits)


@CHECK.works("`checkify` finds no error, and an id out of range as NaN")
def _(model) -> None:
    checked = checkify.checkify(jax.jit(lambda *ids: model(*ids)), errors=checkify.nan_checks)
    error, logits = checked(*PAIR)
    error.throw()
    right(logits)


@CHECK.works("`model.states`: vectors between the layers and attention weights")
def _() -> None:
    found = nnx.jit(lambda model: model.states(*PAIR))(loaded())
    same(found["encoder"]["hidden_lbtd"][-1], transformer.encode(nest(values()), CONFIG, SOURCE))
