"""impl_tf, and the peers that share its process."""

import functools
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from impl_tf import weights
from impl_tf.fast.compiled import compiled
from impl_tf.training import Trainer
from impl_tf.transformer import Transformer

from ..problem import Problem, products
from ..rows import Call, Row, Step, training_row
from . import keras_hub, tf_stock

__all__ = ["describe", "memory", "rows"]

CPU = "/CPU:0"


def describe(device: str) -> str:
    """The threads. Raises ValueError on another device than the CPU."""
    if device != "cpu":
        raise ValueError(f"tf is measured on device cpu; got {device}")
    threads = tf.config.threading.get_intra_op_parallelism_threads() or int(os.environ.get("TF_NUM_INTRAOP_THREADS", 0))
    return f"{threads} threads" if threads else "one thread a core"


def memory(call: Call) -> float | None:
    """MiB at the peak of a call, above what is held before it, by the count of TensorFlow's allocator: what a call frees it keeps for the
    next one. None where it does not count, as without oneDNN."""
    try:
        tf.config.experimental.reset_memory_stats(CPU)
        before = tf.config.experimental.get_memory_info(CPU)["current"]
        call()
        return (tf.config.experimental.get_memory_info(CPU)["peak"] - before) / 2**20
    except ValueError:
        return None


def rows(problem: Problem, device: str) -> list[Row]:
    """As a graph and by XLA; forward passes eager too."""
    task, result = problem.task, []
    if task.kind == "training":
        return _training_rows(problem)
    for precision in task.precisions_on(device):
        result += _searches(problem, precision) if task.decodes else _passes(problem, precision)
    if task.decodes and task.peers:
        result += keras_hub.rows(problem)
    if task.ceiling:
        result.append(Row("tf", "tf.matmul's products alone", functools.partial(_products, problem), ceiling=True))
    return result


def _passes(problem: Problem, precision: str) -> list[Row]:
    """Forward passes, or those of the encoder alone."""
    encodes = problem.task.kind == "encoder"
    tokens = (problem.source,) if encodes else (problem.source, problem.target)

    def start(build: Callable[[Problem, str], Any], jit_compile: bool | None) -> Call:
        model, arguments = build(problem, precision), [tf_stock.ids(token) for token in tokens]
        function = model.encode if encodes else functools.partial(model, training=False)
        if jit_compile is not None and build is _stock:
            function = tf.function(function, autograph=False, jit_compile=jit_compile)
        elif jit_compile is not None:
            function = compiled(function if encodes else model, jit_compile)
            function = function if encodes else functools.partial(function, training=False)
        return _on_cpu(functools.partial(function, *arguments))

    ways: list[tuple[str, Any, bool | None]] = [
        ("impl_tf eager", _ours, None),
        ("impl_tf compiled", _ours, True),
        ("impl_tf compiled, no XLA", _ours, False),
    ]
    if problem.task.peers:
        ways += [("keras.layers compiled", _stock, True), ("keras.layers compiled, no XLA", _stock, False)]
    return [
        Row("tf", name, functools.partial(start, build, jit), _output, precision, peer=build is _stock, compiles=jit is not None)
        for name, build, jit in ways
    ]


def _searches(problem: Problem, precision: str) -> list[Row]:
    """Of a snapshot of the model, whose weights have the precision."""

    def start() -> Call:
        from impl_tf.decoding import Searcher

        searcher = Searcher(_ours(problem), dtype="bfloat16" if precision == "bfloat16" else None)
        search = searcher.greedy_search if problem.task.kind == "greedy" else searcher.beam_search
        return _on_cpu(functools.partial(search, tf_stock.ids(problem.source), problem.strategy))

    return [Row("tf", "impl_tf compiled", start, _answers, precision, compiles=True)]


def _training_rows(problem: Problem) -> list[Row]:
    result = [training_row("tf", "impl_tf compiled", _trainer, problem, compiles=True)]
    for name, jit_compile in (("keras.layers compiled", True), ("keras.layers compiled, no XLA", False)):
        begin = functools.partial(tf_stock.training, jit_compile)
        result.append(training_row("tf", name, begin, problem, peer=True, compiles=True))
    return result


def _on_cpu(call: Call) -> Call:
    def run() -> Any:
        with tf.device(CPU):
            return call()

    return run


def _ours(problem: Problem, precision: str = "float32") -> Transformer:
    model = Transformer(problem.config, dtype=precision)
    kind = tf.as_dtype(precision).as_numpy_dtype
    weights.load(model, {name: tensor.astype(kind) for name, tensor in problem.tensors.items()}, problem.config)
    return model


def _stock(problem: Problem, precision: str) -> Any:
    return tf_stock.build(problem)


def _trainer(problem: Problem) -> Step:
    trainer = Trainer(problem.config, problem.recipe, problem.tensors)
    return lambda: trainer.train_step(problem.source, problem.sequence)


def _products(problem: Problem) -> Call:
    """Each on matrices of its own, as in a model."""
    pairs = []
    for count, rows, inner, columns in products(problem):
        shapes = ((rows, inner), (inner, columns)) if count == 1 else ((count, rows, inner), (count, inner, columns))
        pairs.append([tf.random.stateless_normal(shape, (0, index)) for index, shape in enumerate(shapes)])

    def call() -> None:
        for left, right in pairs:
            tf.matmul(left, right)

    return _on_cpu(call)


def _output(output: Any) -> dict[str, np.ndarray]:
    return {"output": weights.to_numpy(output).astype(np.float32)}


def _answers(found: dict[str, Any]) -> dict[str, np.ndarray]:
    """Those of a search, by the names that are compared."""
    arrays = {name: np.asarray(tensor) for name, tensor in found.items()}
    if "token_bwn" in arrays:
        return {"token_bn": arrays["token_bwn"][:, 0], "score_b": arrays["score_bw"][:, 0]}
    return arrays
