"""Models on meshes of eight devices, which one process of their own has; what became of each action there is asked for here."""

import functools
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from impl_jax import weights
from impl_jax.decoding import Searcher
from impl_jax.programs.compiled import compiled
from impl_jax.transformer import Transformer
from reference_numpy import TransformerConfig, layout, parameters

from . import Run
from .jax_data import CONFIG, PAIR, SEARCH, SMOOTHING, SOURCE, TARGET
from .jax_models import ACTIONS, loaded, loss, same, topic, values

TESTS = Path(__file__).parent.parent
FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_force_host_platform_device_count=8"
MESHED: list[Callable[[], None]] = []
AXES = ("data", "model")
HEADS = CONFIG.replace(heads=4, key_value_heads=4, key_size=4, value_size=4, feed_forward_width=16)
# How a parameter is laid out, by the letters of its canonical axes.
LAYOUTS = {
    "the batch over data": {},
    "heads over model": {"h": "model", "g": "model"},
    "heads and feed-forward over model": {"h": "model", "g": "model", "f": "model"},
    "the vocabulary over model": {"v": "model"},
    "the width over model": {"d": "model"},
    "parameters over data (FSDP)": {"d": "data"},
    "parameters over data, heads and feed-forward over model": {"d": "data", "h": "model", "g": "model", "f": "model"},
}


@functools.cache
def outcomes() -> list[list[str]]:
    """What became of each action, in a process that has eight devices: nothing, or its error."""
    environment = os.environ | {"XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent)))}
    code = "from framework_actions import jax_meshes; jax_meshes.main()"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if run.returncode:
        raise AssertionError(run.stderr)
    return json.loads(run.stdout)


def on_eight(axes: Any, run: Run) -> Run:
    """Runs it there, given a mesh of such axes."""
    MESHED.append(partial(ACTIONS.call, run, mesh=lambda: jax.make_mesh((2, 4), AXES, axis_types=(axes,) * 2)))

    def asked(index: int = len(MESHED) - 1) -> None:
        kind, message = outcomes()[index]
        if kind:
            raise (AssertionError if kind == "AssertionError" else RuntimeError)(message)

    return asked


AUTO = topic("Meshes of Auto axes", partial(on_eight, AxisType.Auto))
EXPLICIT = topic("Meshes of Explicit axes", partial(on_eight, AxisType.Explicit))


def placed(mesh: Any, rules: dict[str, str], config: TransformerConfig = HEADS) -> Transformer:
    """The model, each parameter laid out by the letters of its axes; all else on every device."""
    model, axes = wide(config), parameters.axes(config)
    nnx.update(model, jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, PartitionSpec())), nnx.state(model)))
    state = nnx.state(model, nnx.Param)
    flat = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}
    for name, letters in axes.items():
        native, _ = layout.native(name, letters, weights.TABLE)
        spec = PartitionSpec(*map(rules.get, letters.replace(" ", "")))
        variable = flat[native]
        variable.set_value(jax.device_put(variable.get_value(), NamedSharding(mesh, spec)))
    nnx.update(model, state)
    return model


def wide(config: TransformerConfig = HEADS) -> Transformer:
    model = loaded(config, param_dtype=np.float64)
    weights.load(model, values(config, np.float64), config)
    return model


def ids(mesh: Any) -> list[jax.Array]:
    return [jax.device_put(jnp.asarray(x), NamedSharding(mesh, PartitionSpec("data"))) for x in PAIR]


@nnx.jit
def found(model: Transformer, *pair: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
    """Logits, loss and gradients."""
    value, gradients = nnx.value_and_grad(lambda model: model.training_loss(*pair, smoothing=SMOOTHING))(model)
    return model(*pair), value, nnx.state(gradients, nnx.Param)


@functools.cache
def expected() -> Any:
    """Those on one device."""
    return jax.device_get(found(wide(), *PAIR))


def is_one_device_s(rules: dict[str, str], mesh: Any) -> None:
    result = found(placed(mesh, rules), *ids(mesh))
    assert mesh.axis_types[0] == AxisType.Auto or result[0].sharding.spec[0] == "data"
    all_same(result, expected())


def all_same(found: Any, expected: Any) -> None:
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        same(one, other, 1e-9)


for _topic in (AUTO, EXPLICIT):
    for _name, _rules in LAYOUTS.items():
        _topic.works(f"{_topic.name.split()[2]}: {_name}; logits, loss and gradients", partial(is_one_device_s, _rules))


@EXPLICIT.works("Explicit: a call outside `jit`, `compiled(model)`, `nnx.jit(model)` inside `jax.set_mesh`; heads, parameters sharded")
def _(mesh) -> None:
    model = placed(mesh, LAYOUTS["parameters over data, heads and feed-forward over model"])
    for call in (model, compiled(model)):
        same(call(*ids(mesh)), expected()[0], 1e-9)
    with jax.set_mesh(mesh):
        same(nnx.jit(model)(*ids(mesh)), expected()[0], 1e-9)


@AUTO.works(
    "Auto: `nnx.get_partition_spec` finds no names; `variable.set_metadata(out_sharding=...)` adds some for `nnx.get_named_sharding`"
)
def _(mesh) -> None:
    model = wide()
    state = nnx.state(model, nnx.Param)
    assert {*jax.tree.leaves(nnx.get_partition_spec(state))} == {PartitionSpec()}
    for path, variable in nnx.to_flat_state(state):
        if path[-2:] == ("hidden", "kernel"):
            variable.set_metadata(out_sharding=(None, "model"))
    nnx.update(model, jax.device_put(state, nnx.get_named_sharding(state, mesh)))
    assert model.encoder.layers[0].feed_forward.hidden.kernel.get_value().sharding.spec == PartitionSpec(None, "model")
    all_same(found(model, *ids(mesh)), expected())


@AUTO.works("Auto: two steps of AdamW on sharded parameters and moments")
def _(mesh) -> None:
    models = []
    for model in (wide(), placed(mesh, LAYOUTS["heads and feed-forward over model"])):
        optimizer = nnx.Optimizer(model, optax.adamw(0.01), wrt=nnx.Param)
        for _ in range(2):
            nnx.jit(lambda model, optimizer: optimizer.update(model, nnx.grad(loss)(model)))(model, optimizer)
        models.append(weights.export(model, HEADS))
    for name, array in models[0].items():
        same(models[1][name], array, 1e-9)


@EXPLICIT.works("Explicit: fewer key heads than heads")
def _(mesh) -> None:
    config = HEADS.replace(heads=8, key_value_heads=4)
    found = placed(mesh, LAYOUTS["heads over model"], config)(*ids(mesh))
    same(found, wide(config)(*PAIR), 1e-9)


def over_model(mesh: Any) -> jax.Array:
    """The source, its positions over `model`."""
    return jax.device_put(jnp.asarray(SOURCE), NamedSharding(mesh, PartitionSpec("data", "model")))


@EXPLICIT.works("Explicit: the source's positions over model, `model.encode`")
def _(mesh) -> None:
    same(placed(mesh, {}).encode(over_model(mesh)), wide().encode(SOURCE), 1e-9)


@AUTO.works("Auto: the source's positions over model")
def _(mesh) -> None:
    same(nnx.jit(placed(mesh, {}))(over_model(mesh), jnp.asarray(TARGET)), expected()[0], 1e-9)


@EXPLICIT.refused("Explicit: `training_loss` of a target of sharded positions, which JAX cannot slice", "slicing on sharded dims")
def _(mesh) -> None:
    found(placed(mesh, {}), ids(mesh)[0], over_model(mesh))


EXPLICIT.refused("Explicit: `Searcher(model)`", "decoding needs Auto axes", lambda mesh: Searcher(placed(mesh, {})))


@AUTO.works("Auto: `Searcher(model).beam_search`, heads and vocabulary sharded")
def _(mesh) -> None:
    model = placed(mesh, {"h": "model", "g": "model", "v": "model"})
    found, wanted = (Searcher(each).beam_search(SOURCE, SEARCH | {"beam_size": 2}) for each in (model, wide()))
    same(found["token_bwn"], wanted["token_bwn"], 0)


def drops_alike(mesh: Any) -> None:
    config, logits = HEADS.replace(dropout_rate=0.5, attention_dropout_rate=0.5), []
    for each, pair in ((wide(config), PAIR), (placed(mesh, {"h": "model", "g": "model"}, config), ids(mesh))):
        each.train()
        logits.append(nnx.jit(lambda model, *pair: model(*pair))(each, *pair))
    same(*logits, 1e-9)


for _topic in (AUTO, EXPLICIT):
    _topic.works(f"{_topic.name.split()[2]}: random dropout draws the masks of one device", drops_alike)


@EXPLICIT.works("Explicit: `weights.load` keeps where each parameter lies, `weights.export` brings it together")
def _(mesh) -> None:
    model = placed(mesh, {"d": "data"})
    before = model.source_embedding.table.get_value().sharding
    weights.load(model, values(HEADS, np.float64), HEADS)
    assert model.source_embedding.table.get_value().sharding == before
    assert all((array == values(HEADS, np.float64)[name]).all() for name, array in weights.export(model, HEADS).items())


@AUTO.works("`jax.shard_map` over the batch, gradients added by `jax.lax.psum`")
def _(mesh) -> None:
    spec = PartitionSpec("data")
    graph, state, rest = nnx.split(placed(mesh, {}), nnx.Param, ...)
    total = int((TARGET[:, 1:] != 0).sum())

    def gradients(state: Any, *pair: jax.Array) -> Any:
        found = jax.grad(lambda state: nnx.merge(graph, state, rest).training_loss(*pair, SMOOTHING, total))(state)
        return jax.tree.map(lambda x: jax.lax.psum(x, "data"), found)

    run = jax.shard_map(gradients, mesh=mesh, in_specs=(PartitionSpec(), spec, spec), out_specs=PartitionSpec(), check_vma=False)
    all_same(jax.jit(run)(state, *ids(mesh)), expected()[2])


@AUTO.works("`jax.pmap` over the batch")
def _() -> None:
    model, pair = wide(), [jnp.asarray(x).reshape(4, 1, -1) for x in PAIR]
    same(jax.pmap(lambda *pair: model(*pair))(*pair).reshape(4, 5, -1), expected()[0], 1e-9)


@AUTO.works("a model made in parts: `nnx.jit` with `jax.lax.with_sharding_constraint`")
def _(mesh) -> None:
    @nnx.jit
    def make() -> Transformer:
        model = Transformer(HEADS, rngs=nnx.Rngs(0))
        state = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec())), state))
        return model

    made = make()
    made.eval()
    assert len(made.source_embedding.table.get_value().sharding.device_set) == 8
    same(made.source_embedding.table[...], Transformer(HEADS, rngs=nnx.Rngs(0)).source_embedding.table[...])


def main() -> None:
    found = []
    with jax.enable_x64(True):
        for run in MESHED:
            try:
                run()
                found.append(("", ""))
            except Exception as error:
                found.append((type(error).__name__, f"{error}\n{traceback.format_exc()}"))
    print(json.dumps(found))
