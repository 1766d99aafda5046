"""impl_jax, and the peers that share its process."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from impl_jax import weights
from impl_jax.fast.compiled import compiled
from impl_jax.framework import device as place
from impl_jax.framework import settings
from impl_jax.training import Trainer
from impl_jax.transformer import Transformer

from ..problem import Problem, products
from ..rows import Call, Row, Step, training_row
from . import flax_linen, flax_stock, flax_training

__all__ = ["describe", "rows"]


def describe(device: str) -> str:
    """The device. Raises ValueError where there is no such device."""
    where = place(device)
    return "one thread a core" if device == "cpu" else where.device_kind


def rows(problem: Problem, device: str) -> list[Row]:
    """Compiled, in every precision of the task; then the peers."""
    task, result = problem.task, []
    for precision in task.precisions_on(device):
        where = "cuda-tf32" if precision == "tf32" else device
        if task.kind == "training":
            result += _training_rows(problem, where, precision)
        else:
            result += (_searches if task.decodes else _passes)(problem, where, precision)
    return result


def _passes(problem: Problem, device: str, precision: str) -> list[Row]:
    """Forward passes, or those of the encoder alone."""
    encodes, dtype = problem.task.kind == "encoder", jnp.dtype(_dtype(precision))
    tokens = (problem.source,) if encodes else (problem.source, problem.target)
    method = "encode" if encodes else "__call__"

    def row(name: str, build: Callable[[], Callable[..., jax.Array]], peer: bool = True, ceiling: bool = False) -> Row:
        def start() -> Call:
            with settings(device, "float32"):
                function, arguments = build(), [jnp.asarray(token) for token in tokens]
            return _on(device, functools.partial(function, *([] if ceiling else arguments)))

        return Row("jax", name, start, _output, precision, peer, compiles=True, ceiling=ceiling)

    def ours() -> Callable[..., jax.Array]:
        model = _ours(problem, precision)
        return compiled(model.encode if encodes else model)

    def stock() -> flax_stock.Stock:
        model = flax_stock.build(problem, dtype)
        model.eval()
        return model

    def walked() -> Callable[..., jax.Array]:
        return functools.partial(nnx.jit(lambda model, *tokens: getattr(model, method)(*tokens)), stock())

    result = [row("impl_jax compiled", ours, peer=False)]
    if problem.task.peers:
        result.append(row("flax.nnx compiled, nnx.jit", walked))
        result.append(row("flax.nnx compiled, split by hand", lambda: flax_stock.split_by_hand(stock(), method)))
    if problem.task.ceiling:
        alone = functools.partial(_products, problem, dtype)
        result.append(row("XLA's matrix products alone", alone, peer=False, ceiling=True))
    return result


def _searches(problem: Problem, device: str, precision: str) -> list[Row]:
    """Of a snapshot of the model, whose weights have the precision; and Flax's layers with their caches."""

    def ours() -> Callable[[Any], Any]:
        from impl_jax.decoding import Searcher

        searcher = Searcher(_ours(problem), dtype=jnp.bfloat16 if precision == "bfloat16" else None)
        search = searcher.greedy_search if problem.task.kind == "greedy" else searcher.beam_search
        return lambda source: search(source, problem.strategy)

    def start(build: Callable[[], Callable[[Any], Any]]) -> Call:
        with settings(device, "float32"):
            function, source = build(), jnp.asarray(problem.source)
        return _on(device, functools.partial(function, source))

    result = [Row("jax", "impl_jax compiled", functools.partial(start, ours), _answers, precision, compiles=True)]
    if problem.task.peers and problem.task.kind == "greedy" and precision == "float32":
        for name, module in (("flax.nnx with its cache", flax_stock), ("flax.linen with its cache", flax_linen)):
            begin = functools.partial(start, functools.partial(module.greedy, problem))  # type: ignore[attr-defined]
            result.append(Row("jax", name, begin, _answers, precision, peer=True, compiles=True))
    return result


def _training_rows(problem: Problem, device: str, precision: str) -> list[Row]:
    row = functools.partial(training_row, problem=problem, precision=precision, compiles=True)
    return [
        row("jax", "impl_jax compiled", functools.partial(_trainer, device)),
        row("jax", "flax.nnx compiled, nnx.jit", functools.partial(flax_training.walked_training, device), peer=True),
        row("jax", "flax.nnx compiled, split by hand", functools.partial(flax_training.split_training, device), peer=True),
    ]


def _on(device: str, function: Callable[[], Any]) -> Call:
    def call() -> Any:
        with settings(device, "float32"):
            return jax.block_until_ready(function())

    return call


def _ours(problem: Problem, precision: str = "float32") -> Transformer:
    dtype = _dtype(precision)
    model = Transformer(problem.config, param_dtype=dtype, rngs=nnx.Rngs(0))
    weights.load(model, {name: tensor.astype(dtype) for name, tensor in problem.tensors.items()}, problem.config)
    model.eval()
    return model


def _dtype(precision: str) -> Any:
    return jnp.bfloat16 if precision == "bfloat16" else jnp.float32


def _trainer(device: str, problem: Problem) -> Step:
    trainer = Trainer(problem.config, problem.recipe, problem.tensors, device=device)
    return lambda: trainer.train_step(problem.source, problem.sequence)


def _products(problem: Problem, dtype: Any) -> Callable[[], Any]:
    """Each on matrices of its own, as in a model, and in one program, as XLA multiplies them there."""
    pairs, key = [], jax.random.key(0)
    for count, rows, inner, columns in products(problem):
        shapes = ((rows, inner), (inner, columns)) if count == 1 else ((count, rows, inner), (count, inner, columns))
        pairs.append([jax.random.normal(key, shape, dtype) for shape in shapes])
    return functools.partial(jax.jit(lambda pairs: [jnp.matmul(left, right) for left, right in pairs]), pairs)


def _output(output: jax.Array) -> dict[str, np.ndarray]:
    return {"output": np.asarray(output, np.float32)}


def _answers(found: Any) -> dict[str, np.ndarray]:
    """Those of a search, by the names that are compared."""
    arrays = {name: np.asarray(array) for name, array in found.items()} if isinstance(found, dict) else {"token_bn": np.asarray(found)}
    if "token_bwn" in arrays:
        return {"token_bn": arrays["token_bwn"][:, 0], "score_b": arrays["score_bw"][:, 0]}
    return arrays
