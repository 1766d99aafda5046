"""Checks of the JAX port on meshes, run in a process that has eight devices."""

import functools
import json
import logging
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax_on_eight import AXES, CLOSE, MESHES, MODELS, STILL, answers, batch, begin, close, random, trains

from impl_jax import port
from impl_jax.dropout import Dropout
from impl_jax.programs.assembly import assembled
from impl_jax.programs.sharding import Sharding, name_of
from impl_jax.programs.traffic import traffic
from impl_jax.training import Trainer
from reference_numpy import TransformerConfig, sharding
from reference_numpy.sharding import Mesh
from reference_numpy.strategy import Strategy

CHECKS: dict[str, Callable[[], Any]] = {}
LATER = "later: "  # prefix of the names of checks of kind conformance


def main(names: Iterable[str]) -> None:
    """Prints the outcome of each check: its error, or an empty string."""
    found = {}
    for name in names:
        try:
            CHECKS[name]()
            found[name] = ""
        except Exception as error:
            found[name] = f"{error}\n{traceback.format_exc()}"
        print(f"{name}: {found[name] or 'holds'}", file=sys.stderr, flush=True)
    print(json.dumps(found))


class Part:
    """A tensor of a file that reads only the requested part."""

    read = 0  # numbers read, over all instances

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __getitem__(self, index: Any) -> np.ndarray:
        Part.read += self.array[index].size
        return self.array[index]


def process(rank: int, port_number: int) -> None:
    """One of two processes with two devices each: ten steps, and a state of which each process reads only its parts."""
    jax.distributed.initialize(f"localhost:{port_number}", 2, rank)
    run = trains("llama", "data=2,model=2")
    state = run.state()
    run.train_step(*batch(run.config))
    run.load_state({name: Part(array) for name, array in state.items()}, 10)
    again = run.state()
    assert all((again[name] == array).all() for name, array in state.items())
    flags = [run.group.any(flag) for flag in (rank == 1, False)]
    run.group.barrier()
    size = sum(array.size for array in state.values())
    print(json.dumps({"rank": run.group.rank, "size": run.group.size, "flags": flags, "read": Part.read / size}))


def check(name: str, *arguments: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a call of the function as a check of this name."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CHECKS[name] = functools.partial(function, *arguments, **options)
        return function

    return add


def later(name: str, *arguments: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`check` of kind conformance."""
    return check(LATER + name, *arguments, **options)


def over_data(config: TransformerConfig, mesh: Mesh) -> Iterator[str]:
    """Yields the parameters that a mesh splits over data."""
    for name, places in sharding.splits(config, mesh).items():
        if any("data" in (place if isinstance(place, tuple) else (place,)) for place in places):
            yield name


def moves_as_planned(run: Trainer, mesh: Mesh) -> None:
    """Checks that parameters are placed as declared, and that a step gathers layers over data, forward and backward; never over model."""
    config, program = run.config, run.program(*batch(run.config))
    place = Sharding(config, mesh)

    def bytes_of(name: str, parts: int) -> int:
        one = place.places[name]
        return 8 * int(np.prod([held // (parts if axis else 1) for held, axis in zip(one.held, one.used, strict=True)]))

    for path, found in jax.tree.leaves_with_path(program.input_shardings[0][0]):
        one = place.places[name_of(path)]
        assert found.is_equivalent_to(place.at(one.rest), len(one.rest)), (name_of(path), found)
    planned, over_model = Counter[int](), {bytes_of(name, 1) for name, one in place.places.items() if "model" in one.used}
    for name in over_data(config, mesh):
        planned[bytes_of(name, mesh.model)] += 1 + (".layers." in name and len(place.places[name].shape) > 1)
    sizes = Counter(size for kind, size in traffic(program) if kind == "all-gather")
    assert planned and planned <= sizes, (sizes, planned)
    assert over_model and not over_model & {*sizes}, (sizes, over_model)


def compiled(call: Callable[[], Any]) -> list[str]:
    """Returns the compiled program of a call."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("jax").addHandler(handler)
    with jax.log_compiles():
        call()
    logging.getLogger("jax").removeHandler(handler)
    return [message for message in messages if message.startswith("Compiling ")]


@check("ten steps of a Llama by one program, whose parameters lie and move as planned")
def _() -> None:
    mesh = "data=2,model=4"
    run = trains("llama", mesh)
    run.load_state(run.state(), 10)
    assert compiled(lambda: jax.jit(lambda x: x + 1)(0.0))
    assert not (found := compiled(lambda: run.train_step(*batch(run.config)))), found
    moves_as_planned(run, Mesh.parse(mesh))


@check("attention of two groups on four columns: outputs and gradients, Explicit", "Explicit")
@check("attention of two groups on four columns: outputs and gradients, Auto", "Auto")
def _(axes: str) -> None:
    x = random({"query_btd": (5, 6, 16), "memory_bsd": (5, 7, 16)})
    answers("multi_head_attention_vjp", MODELS["untied"], "data=2,model=4", axes, **x)


@check("logits of 41 words on four columns: outputs and gradients, Explicit", "Explicit")
@check("logits of 41 words on four columns: outputs and gradients, Auto", "Auto")
def _(axes: str) -> None:
    answers("logits_vjp", MODELS["untied"], "data=2,model=4", axes, **random({"x_btd": (5, 6, 16)}))


@check("random masks in parts are those of one device")
def _() -> None:
    place = Sharding(MODELS["llama"], Mesh.parse("data=2,model=4"))

    def draw(key: jax.Array, split: bool) -> Any:
        keep_bhts = Dropout(0.5, rngs=nnx.Rngs(dropout=key)).draw((6, 8, 5, 7))
        return place.put(keep_bhts, "data", "model") if split and keep_bhts is not None else keep_bhts

    whole, parts = (jax.jit(draw, static_argnums=1)(jax.random.key(3), split) for split in (False, True))
    assert parts.sharding.spec[:2] == ("data", "model")
    np.testing.assert_array_equal(whole, parts)


@check("a table's gradient from rows that do not divide")
def _() -> None:
    config, rng = MODELS["untied"], np.random.default_rng(5)
    place = Sharding(config, Mesh.parse("data=4,model=2"), component="embedding")
    graph, empty, *rest = nnx.split(port.components["embedding"](config, np.dtype("float32")), nnx.Param, ...)
    value, token = rng.normal(size=(37, 16)).astype("float32"), rng.integers(0, 37, (5, 6))

    def split(state: Any, token: jax.Array) -> jax.Array:
        x = assembled(graph, state, *rest, sharding=place)(place.rows(token, 5))
        return jax.numpy.cos(place.put(x, "data")).sum()

    def plain(state: Any, token: jax.Array) -> jax.Array:
        return jax.numpy.cos(nnx.merge(graph, state, *rest)(token)).sum()

    (found,) = jax.tree.leaves(jax.jit(jax.grad(split))(place.state(empty, lambda name: value), place.batch(token)))
    (wanted,) = jax.tree.leaves(jax.jit(jax.grad(plain))(jax.tree.map(lambda _: value, empty), token))
    np.testing.assert_allclose(place.whole("table", found), wanted, atol=1e-4)


check("experts, sinks and biases in parts: ten steps of gpt-oss", "gpt_oss", "data=2,model=2")(trains)
for _place, _model in enumerate(MODELS):
    for _index, _mesh in enumerate(MESHES):
        for _axes in AXES:
            # Every mesh, every model, and both types of axes; the rest last.
            _early = (_model == "paper" and _axes == "Auto") or (_place + _index + 3 * (_axes == "Auto")) % len(MESHES) == 0
            check(f"{LATER}ten steps: {_model} on {_mesh}, {_axes}", _model, _mesh, _axes)(trains)
for _axes in AXES:
    later(f"microbatches of rows that do not divide, {_axes}", "llama", "data=2,model=2", _axes, rows=6, microbatches=2, steps=3)(trains)
    later(f"recompute, {_axes}", "paper", "data=2,model=4", _axes, steps=3, recompute=True)(trains)
    for _mesh in MESHES[:3]:
        later(f"rows and words that divide, on {_mesh}, {_axes}", "even", _mesh, _axes, rows=8, steps=3)(trains)
check(f"{LATER}operation by operation", "llama", "data=2,model=2", steps=2, compiled=False)(trains)


@later("random masks of every mesh, recomputed ones too, are those of no mesh")
def _() -> None:
    for model in ("paper", "gpt2"):
        config = MODELS[model]
        losses = []
        for mesh, recompute in (
            (None, False),
            (None, True),
            ("data=2,model=4", False),
            ("data=4,model=2", True),
            ("data=8,replicate", False),
        ):
            run = begin(config, mesh, recompute=recompute)
            losses.append([float(run.train_step(*batch(config, step))) for step in range(3)])
        np.testing.assert_allclose(losses[1:], [losses[0]] * (len(losses) - 1), rtol=CLOSE)


@later("a run without padding recomputes to the same numbers")
def _() -> None:
    config, found = MODELS["paper"], []
    for recompute in (False, True):
        run = begin(config, None, recompute=recompute)
        run.least = 0
        assert any(run.flat(*batch(config)))
        found.append([float(run.train_step(*batch(config, step))) for step in range(3)])
    np.testing.assert_allclose(*found, rtol=CLOSE)


@later("a state goes from mesh to mesh to the bit")
def _() -> None:
    config = MODELS["paper"]
    runs = [begin(config, mesh) for mesh in (None, "data=2,model=4", "model=8")]
    runs[1].train_step(*batch(config))
    state = runs[1].state()
    for run in (runs[0], runs[2]):
        run.load_state(state, 1)
        close(run.state(), state, 0)
    losses = [float(run.train_step(*batch(config, 1))) for run in runs]
    np.testing.assert_allclose(losses, losses[:1] * 3, rtol=CLOSE)


@later("searches on Auto axes; on Explicit ones they are refused")
def _() -> None:
    config = MODELS["paper"].replace(**STILL)
    strategy = Strategy(start_id=1, end_id=2, max_new_tokens=5, beam_size=3, n_best=2)
    source = batch(config)[0]
    for search in ("greedy_search", "beam_search"):
        wanted = getattr(begin(config, None), search)(source, strategy)
        for mesh in ("data=2,model=4", "data=1"):
            found = getattr(begin(config, mesh), search)(source, strategy)
            for name, array in wanted.items():
                np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-9)
    try:
        begin(config, "data=2,model=4", "Explicit").greedy_search(source, strategy)
    except ValueError as error:
        assert "decoding needs Auto axes" in str(error)
    else:
        raise AssertionError("nothing was refused")


@later("experts in parts: steps of training and of decoding, outputs and gradients")
def _() -> None:
    for model in ("mixtral", "gpt_oss", "glm", "granite"):
        config, mesh = MODELS[model], "data=2,model=2"
        for axes in AXES:
            trains(model, mesh, axes, steps=2)
            answers("mixture_of_experts_vjp", config, mesh, axes, **random({"x_btd": (5, 6, 16)}))
        answers("decode_in_steps", config, mesh, target=batch(config)[1], memory_bsd=None, splits=(2, 3, 1))
        answers("states", config, mesh, source=None, target=batch(config)[1])


@later("losses and their gradients, Explicit", "Explicit")
@later("losses and their gradients, Auto", "Auto")
def _(axes: str) -> None:
    for model, component in (("bert", "classification_loss_vjp"), ("gemma", "training_loss_vjp"), ("gpt2", "training_loss_vjp")):
        config = MODELS[model].replace(padding_id=None)  # every token of every row counts
        source, target = batch(config)
        label = {"label_b": target} if config.classes else {"target": target}
        answers(component, config, "data=4,model=2", axes, source=source, smoothing=0.1, **label)


@later("a function that compiles itself, one without parameters, and what reads the parts of layers")
def _() -> None:
    config, mesh = MODELS["llama"], "data=2,model=4"
    answers("decode_in_steps", config, mesh, target=batch(config)[1], memory_bsd=None, splits=(2, 3, 1))
    answers("states", config, mesh, source=None, target=batch(config)[1])
    x = random({"query_bthk": (5, 6, 8, 4), "key_bsgk": (5, 7, 2, 4), "value_bsge": (5, 7, 2, 6)})
    answers("scaled_dot_product_attention_vjp", config, mesh, **x)
