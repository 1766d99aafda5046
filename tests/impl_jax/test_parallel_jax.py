"""Users' own shardings of the JAX port on a mesh of eight devices, in one process."""

import functools
import json
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax_on_eight import in_process
from user_models import CONFIG, PAIR, SOURCE, TARGET, Models, same, values

from impl_jax import weights
from impl_jax.programs.compiled import compiled
from reference_numpy import layout, parameters

HEADS = CONFIG.replace(heads=4, key_value_heads=4, feed_forward_width=16)
AXES = {"Auto": AxisType.Auto, "Explicit": AxisType.Explicit}
# How parameters are split, by the letters of their canonical axes.
LAYOUTS: dict[str, dict[str, str]] = {
    "batch": {}, "heads": {"h": "model", "g": "model", "f": "model"}, "vocabulary": {"v": "model"},
    "width": {"d": "model"}, "fsdp": {"d": "data", "h": "model", "g": "model", "f": "model"},
}  # fmt: skip
ALL = LAYOUTS["fsdp"]


def wide(config: Any = HEADS) -> Any:
    return Models("jax").loaded(config)


def placed(mesh: Any, rules: dict[str, str], config: Any = HEADS) -> Any:
    """Returns the model with each parameter split by the letters of its axes, and everything else on every device."""
    model, place = wide(config), functools.partial(NamedSharding, mesh)
    nnx.update(model, jax.tree.map(lambda x: jax.device_put(x, place(PartitionSpec())), nnx.state(model)))
    state = nnx.state(model, nnx.Param)
    flat = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}
    for name, letters in parameters.axes(config).items():
        variable = flat[layout.native(name, letters, weights.TABLE)[0]]
        spec = PartitionSpec(*map(rules.get, letters.replace(" ", "")))
        variable.set_value(jax.device_put(variable.get_value(), place(spec)))
    nnx.update(model, state)
    return model


def ids(mesh: Any) -> list[Any]:
    return [jax.device_put(jnp.asarray(x), NamedSharding(mesh, PartitionSpec("data"))) for x in PAIR]


@nnx.jit
def found(model: Any, *pair: Any) -> tuple[Any, Any, Any]:
    """Returns logits, loss and gradients."""
    value, gradients = nnx.value_and_grad(lambda model: model.training_loss(*pair, smoothing=0.1))(model)
    return model(*pair), value, nnx.state(gradients, nnx.Param)


@functools.cache
def expected() -> Any:
    return jax.device_get(found(wide(), *PAIR))


def all_same(one: Any, other: Any) -> None:
    for x, y in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        same(x, y)


def gives_one_device_s(mesh: Any, rules: dict[str, str]) -> None:
    all_same(found(placed(mesh, rules), *ids(mesh)), expected())


def calls(mesh: Any) -> None:
    model = placed(mesh, ALL)
    for run in (model, compiled(model)):
        same(run(*ids(mesh)), expected()[0])
    if mesh.axis_types[0] == AxisType.Explicit:
        with jax.set_mesh(mesh):
            same(nnx.jit(model)(*ids(mesh)), expected()[0])


def trains(mesh: Any) -> None:
    models = [wide(), placed(mesh, LAYOUTS["heads"])]
    for model in models:
        optimizer = nnx.Optimizer(model, optax.adamw(0.01), wrt=nnx.Param)
        pair = PAIR if model is models[0] else ids(mesh)
        of = lambda model, *pair: model.training_loss(*pair)  # noqa: E731
        for _ in range(2):
            nnx.jit(lambda model, optimizer, *pair, of=of: optimizer.update(model, nnx.grad(of)(model, *pair)))(model, optimizer, *pair)
    for name, array in weights.export(models[0], HEADS).items():
        same(weights.export(models[1], HEADS)[name], array)


def loads(mesh: Any) -> None:
    """Checks that loading keeps the placement of each parameter, and an export gathers it."""
    model, arrays = placed(mesh, {"d": "data"}), values(HEADS)
    before = model.source_embedding.table.get_value().sharding
    weights.load(model, arrays, HEADS)
    assert model.source_embedding.table.get_value().sharding == before
    assert all((array == arrays[name]).all() for name, array in weights.export(model, HEADS).items())


def fewer_keys(mesh: Any) -> None:
    config = HEADS.replace(heads=8)
    same(placed(mesh, LAYOUTS["heads"], config)(*ids(mesh)), wide(config)(*PAIR))


def positions(mesh: Any) -> None:
    over = jax.device_put(jnp.asarray(SOURCE), NamedSharding(mesh, PartitionSpec("data", "model")))
    same(placed(mesh, {}).encode(over), wide().encode(SOURCE))


def maps(mesh: Any) -> None:
    """Checks `jax.shard_map` over the batch, with gradients added by `jax.lax.psum`."""
    spec, everywhere = PartitionSpec("data"), PartitionSpec()
    graph, state, rest = nnx.split(placed(mesh, {}), nnx.Param, ...)
    total = int((TARGET[:, 1:] != 0).sum())

    def gradients(state: Any, *pair: Any) -> Any:
        of = lambda state: nnx.merge(graph, state, rest).training_loss(*pair, 0.1, total)  # noqa: E731
        return jax.tree.map(lambda x: jax.lax.psum(x, "data"), jax.grad(of)(state))

    run = jax.shard_map(gradients, mesh=mesh, in_specs=(everywhere, spec, spec), out_specs=everywhere, check_vma=False)
    all_same(jax.jit(run)(state, *ids(mesh)), expected()[2])


CHECKS: dict[str, tuple[str, Callable[[Any], None]]] = {
    f"{run.__name__}, {axes}": (axes, run)
    for run in (calls, trains, loads, fewer_keys, positions, maps)
    for axes in AXES
    if (run, axes) != (maps, "Explicit")
} | {
    f"{name}, {axes}": (axes, functools.partial(gives_one_device_s, rules=rules))
    for name, rules in LAYOUTS.items()
    for axes in AXES
}  # fmt: skip


def main() -> None:
    """Prints the error of each check; runs in a process of eight devices."""
    errors = dict.fromkeys(CHECKS, "")
    with jax.enable_x64(True):
        for name, (axes, run) in CHECKS.items():
            try:
                run(jax.make_mesh((2, 4), ("data", "model"), axis_types=(AXES[axes],) * 2))
            except Exception:
                errors[name] = traceback.format_exc()
    print(json.dumps(errors))


@functools.cache
def outcomes() -> dict[str, str]:
    return in_process("import test_parallel_jax; test_parallel_jax.main()", 8)()


@pytest.mark.conformance
@pytest.mark.xdist_group("users' meshes")
@pytest.mark.parametrize("name", CHECKS)
def test_a_mesh_gives_the_numbers_of_one_device(name: str) -> None:
    assert not (error := outcomes()[name]), error
