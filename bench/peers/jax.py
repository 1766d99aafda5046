"""impl_jax, and the peers that share its process."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from impl_jax.framework import device as place
from impl_jax.framework import device_context
from impl_jax.programs.compiled import compiled
from impl_jax.programs.fused import fused
from impl_jax.training import Trainer
from impl_jax.transformer import Transformer
from rosettaformer.common.backends import transformer
from rosettaformer.comparison.timing.rows import Call, Row

from ..problem import Problem, optional, products
from ..timed_rows import Step, training_row
from . import flax_stock

Function = Callable[..., Any]


def describe(device: str) -> str:
    """Returns the device. Raises ValueError if it does not exist."""
    where = place(device)
    return "one thread per core" if device == "cpu" else where.device_kind


def rows(problem: Problem, device: str) -> list[Row]:
    """Returns compiled rows in every precision of the task, and the peers."""
    task, result = problem.task, []
    make = _training_rows if task.kind == "training" else _searches if task.decodes else _passes
    for precision in task.precisions_on(device, of=("float32", "tf32", "bfloat16", "int8")):
        result += make(problem, "cuda-tf32" if precision == "tf32" else device, precision)
    return result


def _passes(problem: Problem, device: str, precision: str) -> list[Row]:
    """Returns forward passes, or only the encoder's."""
    method, dtype = "encode" if problem.task.kind == "encoder" else "__call__", _dtype(precision)

    def ours(**options: Any) -> Function:
        model = _ours(problem, precision)
        if precision == "int8":
            model = fused(model, jnp.int8)
        return functools.partial(compiled(model.encode if method == "encode" else model), **options)

    def stock() -> Any:
        model = flax_stock.build(problem, dtype)
        model.eval()
        return model

    def walked() -> Function:
        return functools.partial(nnx.jit(lambda model, *tokens: getattr(model, method)(*tokens)), stock())

    row = functools.partial(pass_row, device, precision)
    result = [row("impl_jax compiled", ours, *problem.inputs)]
    if precision == "int8":
        return result
    if problem.task.skips:
        skipping = functools.partial(ours, skip_padding=True)
        result.append(row("impl_jax compiled, skip_padding", skipping, *problem.inputs, skips=True))
    if problem.task.peers:
        result.append(row("flax.nnx compiled, nnx.jit", walked, *problem.inputs, peer=True))
        split = lambda: flax_stock.split_by_hand(stock(), method)  # noqa: E731
        result.append(row("flax.nnx compiled, split manually", split, *problem.inputs, peer=True))
    if problem.task.ceiling:
        result.append(row("XLA's matrix products only", functools.partial(_products, problem, dtype), ceiling=True))
    return result


def _searches(problem: Problem, device: str, precision: str) -> list[Row]:
    """Returns searches on a snapshot of the model, and Flax's layers with their caches."""

    def ours() -> Function:
        from impl_jax.decoding import Searcher

        searcher = Searcher(_ours(problem), dtype={"bfloat16": jnp.bfloat16, "int8": jnp.int8}.get(precision))
        search = searcher.greedy_search if problem.task.kind == "greedy" else searcher.beam_search
        given = functools.partial(search, strategy=problem.strategy)
        return given if problem.config.encoder_layers else lambda prompt: given(source=None, prefix=prompt)

    row = functools.partial(pass_row, device, precision)
    result = [row("impl_jax compiled", ours, problem.source)]
    if problem.task.peers and problem.task.kind == "greedy" and precision == "float32":
        search = functools.partial(flax_stock.greedy, problem)
        result.append(row("flax.nnx with its cache", search, problem.source, peer=True))
    return result


def _training_rows(problem: Problem, device: str, precision: str) -> list[Row]:
    def start(build: Callable[[Problem], Step], given: Problem) -> Step:
        return placed(device, lambda: build(given))

    def ours(given: Problem) -> Step:
        trainer = Trainer(given.config, given.recipe, given.tensors, device=device)
        return lambda: trainer.train_step(given.encoded, given.sequence)

    row = functools.partial(training_row, problem=problem, precision=precision, compiles=True)
    ways = {"nnx.jit": flax_stock.walked_training, "split manually": flax_stock.split_training}
    peers = {f"flax.nnx compiled, {how}": functools.partial(start, train) for how, train in ways.items()}
    return [row("jax", "impl_jax compiled", ours), *(row("jax", name, begin, peer=True) for name, begin in peers.items())]


def pass_row(device: str, precision: str, name: str, build: Callable[[], Function], *tokens: np.ndarray | None, **about: Any) -> Row:
    """Returns a row for the function that `build` returns, compiled, on the tokens."""

    def bind() -> Call:
        function, arguments = build(), [*map(optional(jnp.asarray), tokens)]
        return lambda: jax.block_until_ready(function(*arguments))

    return Row("jax", name, precision, compiles=True, start=functools.partial(placed, device, bind), **about)


def placed(device: str, build: Callable[[], Call]) -> Call:
    """Returns a call that is built and run with the device's settings."""
    with device_context(device, "float32"):
        built = build()

    def call() -> Any:
        with device_context(device, "float32"):
            return built()

    return call


def _ours(problem: Problem, precision: str = "float32") -> Transformer:
    dtype = _dtype(precision)
    model = transformer("jax", problem.config, {name: tensor.astype(dtype) for name, tensor in problem.tensors.items()})
    model.eval()
    return model


def _dtype(precision: str) -> Any:
    return jnp.bfloat16 if precision == "bfloat16" else jnp.float32


def _products(problem: Problem, dtype: Any) -> Function:
    """Runs each matrix product on its own matrices, all in one program, as XLA does in a model."""
    key = jax.random.key(0)
    pairs = [[jax.random.normal(key, shape, dtype) for shape in shapes] for shapes in products(problem)]
    return functools.partial(jax.jit(lambda pairs: [jnp.matmul(left, right) for left, right in pairs]), pairs)
