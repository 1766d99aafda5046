"""Saving, export of programs, and bridges to other libraries."""

import copy
import pickle
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import linen, nnx

from impl_jax import weights
from impl_jax.transformer import Transformer
from reference_numpy import TransformerConfig

from .jax_data import CLASSES, CONFIG, GPT2, PAIR, SOURCE, TARGET
from .jax_models import loaded, reference, right, same, topic, values

FILES, EXPORT, BRIDGES = map(topic, ("Saving", "Export of programs", "Linen"))


@FILES.works("Orbax: `StandardCheckpointer` of the parameters")
def _(model, other, folder) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "state", nnx.state(model, nnx.Param))
        checkpointer.wait_until_finished()
        nnx.update(other, checkpointer.restore(folder / "state", nnx.state(other, nnx.Param)))
    right(other(*PAIR))


@FILES.works("Orbax: `CheckpointManager` of pure dicts, the latest step")
def _(model, other, folder) -> None:
    state = nnx.state(other, nnx.Param)
    with ocp.CheckpointManager(folder) as manager:
        for step, each in enumerate((other, model)):
            manager.save(step, args=ocp.args.StandardSave(nnx.to_pure_dict(nnx.state(each, nnx.Param))))
        manager.wait_until_finished()
        nnx.replace_by_pure_dict(state, manager.restore(1, args=ocp.args.StandardRestore(nnx.to_pure_dict(state))))
    nnx.update(other, state)
    right(other(*PAIR))


@FILES.works("msgpack: `flax.serialization.to_bytes` of the pure dict")
def _(model, other) -> None:
    state = nnx.state(other, nnx.Param)
    written = flax.serialization.to_bytes(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    nnx.replace_by_pure_dict(state, flax.serialization.from_bytes(nnx.to_pure_dict(state), written))
    nnx.update(other, state)
    right(other(*PAIR))


@FILES.works("`pickle`, `copy.deepcopy` and `nnx.clone` of the model")
def _(model) -> None:
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), nnx.clone(model)):
        right(again(*PAIR))
        assert again.source_embedding.table is not model.source_embedding.table


@FILES.works("`np.savez` of `nnx.to_flat_state`")
def _(model, other, folder) -> None:
    own = nnx.to_flat_state(nnx.state(model, nnx.Param))
    np.savez(folder / "a.npz", **{"/".join(map(str, path)): variable[...] for path, variable in own})
    arrays = np.load(folder / "a.npz")
    for path, variable in nnx.to_flat_state(nnx.state(other, nnx.Param)):
        variable.set_value(jnp.asarray(arrays["/".join(map(str, path))]))
        nnx.update(other, nnx.from_flat_state([(path, variable)]))
    right(other(*PAIR))


@FILES.works("`nnx.eval_shape` of the model, then `nnx.merge` with a restored state: no random parameters are made")
def _() -> None:
    graph, _ = nnx.split(nnx.eval_shape(lambda: Transformer(CONFIG, rngs=nnx.Rngs(0))))
    model = nnx.merge(graph, nnx.state(loaded()))
    model.eval()
    right(model(*PAIR))


def exported(config: TransformerConfig, *shapes: Any, **options: Any) -> Any:
    """The program of the call, written and read again."""
    model = loaded(config)
    call = jax.jit(lambda *given: model(*given) if config.encoder_layers else model(None, *given))
    program = jax.export.export(call, **options)(*(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes))
    again = jax.export.deserialize(program.serialize())
    return lambda *given: again.call(*(jnp.asarray(each, jnp.int32) for each in given))


EXPORT.works("`jax.export` of fixed shapes, serialised", lambda: right(exported(CONFIG, SOURCE.shape, TARGET.shape)(*PAIR)))


@EXPORT.works("`jax.export` of symbolic batch and lengths, with sinusoidal positions")
def _() -> None:
    batch, source, target = jax.export.symbolic_shape("b, s, t")
    call = exported(CONFIG, (batch, source), (batch, target))
    right(call(*PAIR))
    right(call(SOURCE[:1, :4], TARGET[:1, :1]), source=SOURCE[:1, :4], target=TARGET[:1, :1])


@EXPORT.works("`jax.export` of symbolic batch and length, learned positions (GPT-2); NaN beyond the table", sample=True)
def _() -> None:
    call = exported(GPT2, jax.export.symbolic_shape("b, t"))
    right(call(TARGET), GPT2)
    assert np.isnan(call(np.ones((1, 17)))).any()
    assert np.isfinite(call(np.ones((1, 16)))).all()


EXPORT.works(
    "`jax.export` of an encoder-only model (BERT), symbolic",
    lambda: right(exported(CLASSES, jax.export.symbolic_shape("b, s"))(SOURCE), CLASSES),
)
EXPORT.works(
    "`jax.export` with constraints on the length",
    lambda: right(exported(GPT2, jax.export.symbolic_shape("b, t", constraints=["t <= 16"]))(TARGET), GPT2),
)
EXPORT.works(
    "`jax.export(..., platforms=('cpu', 'cuda', 'tpu'))` on a machine without them",
    lambda: right(exported(CONFIG, SOURCE.shape, TARGET.shape, platforms=("cpu", "cuda", "tpu"))(*PAIR)),
)


@EXPORT.works("`jax.export` with the gradient: `serialize(vjp_order=1)`")
def _() -> None:
    graph, state, rest = nnx.split(loaded(), nnx.Param, ...)
    rows = jnp.asarray(np.eye(24)[SOURCE], jnp.float32)
    program = jax.export.export(jax.jit(lambda rows: nnx.merge(graph, state, rest)(rows, TARGET).sum()))(rows)
    again = jax.export.deserialize(program.serialize(vjp_order=1))
    same(jax.grad(again.call)(rows), jax.grad(lambda rows: nnx.merge(graph, state, rest)(rows, TARGET).sum())(rows))


@BRIDGES.works("`nnx.bridge.ToLinen(Transformer, ...)`: `init` and `apply`")
def _(other) -> None:
    module = nnx.bridge.ToLinen(Transformer, args=(CONFIG,))
    variables = module.init(jax.random.key(0), *PAIR)
    state = nnx.state(other, nnx.Param)
    nnx.replace_by_pure_dict(state, jax.tree.map(lambda x: x, variables["params"]))
    nnx.update(other, state)
    same(module.apply(variables, *PAIR), reference(arrays=weights.export(other, CONFIG)))


@BRIDGES.works("a Linen module as a part: `nnx.bridge.ToNNX(linen.LayerNorm())`")
def _(model) -> None:
    norm = nnx.bridge.ToNNX(linen.LayerNorm(epsilon=CONFIG.epsilon), rngs=nnx.Rngs(0)).lazy_init(jnp.ones((1, 1, 8)))
    own = values()
    for variable, name in ((norm.scale, "scale"), (norm.bias, "offset")):
        variable.set_value(jnp.asarray(own[f"encoder.layers.0.feed_forward_norm.{name}"]))
    model.encoder.layers[0].feed_forward_norm = norm
    right(model(*PAIR))
