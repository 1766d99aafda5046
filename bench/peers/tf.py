"""impl_tf, and the peers that share its process."""

import functools
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

from impl_tf.programs.compiled import compiled
from impl_tf.programs.fused import fused
from impl_tf.training import Trainer
from impl_tf.transformer import Transformer
from rosettaformer.common.backends import transformer
from rosettaformer.comparison.timing.rows import Call, Row

from ..problem import Problem, optional, products
from ..timed_rows import Step, training_row
from . import keras_hub, tf_stock

CPU = "/CPU:0"


def describe(device: str) -> str:
    """Returns the threads. Raises ValueError unless the device is the CPU."""
    if device != "cpu":
        raise ValueError(f"tf only runs on device cpu; got {device}")
    threads = tf.config.threading.get_intra_op_parallelism_threads() or int(os.environ.get("TF_NUM_INTRAOP_THREADS", 0))
    return f"{threads} threads" if threads else "one thread per core"


def memory(call: Call) -> float | None:
    """Returns the peak MiB of a call above what was held before, as counted by TensorFlow's
    allocator, which keeps freed memory for the next call. None if it does not count, as without
    oneDNN."""
    try:
        tf.config.experimental.reset_memory_stats(CPU)
        before = tf.config.experimental.get_memory_info(CPU)["current"]
        call()
        return (tf.config.experimental.get_memory_info(CPU)["peak"] - before) / 2**20
    except ValueError:
        return None


def rows(problem: Problem, device: str) -> list[Row]:
    """Returns rows as graphs and with XLA; forward passes also eagerly."""
    task, result = problem.task, []
    if task.kind == "training":
        return _training_rows(problem)
    for precision in task.precisions_on(device, of=("float32", "bfloat16", "int8")):
        result += _searches(problem, precision) if task.decodes else _passes(problem, precision)
    if task.peers and (task.decodes or task.published):
        result += keras_hub.rows(problem)
    if task.ceiling:
        result.append(Row("tf", "tf.matmul's products only", ceiling=True, start=functools.partial(_products, problem)))
    return result


def _passes(problem: Problem, precision: str) -> list[Row]:
    """Returns forward passes, or only the encoder's."""

    def start(build: Callable[[], Any], jit_compile: bool | None, **options: Any) -> Call:
        model, tokens = build(), map(optional(tf_stock.ids), problem.inputs)
        function = model.encode if encodes else model
        if jit_compile is not None:
            function = compiled(function, jit_compile)
        keywords = {} if encodes else {"training": False}
        return _on_cpu(functools.partial(function, *tokens, **keywords, **options))

    encodes, (name_of_stock, build_stock) = problem.task.kind == "encoder", _stock(problem)
    ours, stock = functools.partial(_ours, problem, precision), functools.partial(build_stock, problem)
    ways: list[tuple[str, Callable[[], Any], bool | None]] = [
        ("impl_tf eager", ours, None),
        ("impl_tf compiled", ours, True),
        ("impl_tf compiled, no XLA", ours, False),
    ]
    if problem.task.peers and precision != "int8" and not (encodes and problem.task.published):
        ways += [(f"{name_of_stock} compiled", stock, True), (f"{name_of_stock} compiled, no XLA", stock, False)]
    result = [
        Row("tf", name, precision, peer=build is stock, compiles=jit is not None, start=functools.partial(start, build, jit))
        for name, build, jit in ways
    ]
    if problem.task.skips:
        skipping = functools.partial(start, ours, True, skip_padding=True)
        result.insert(2, Row("tf", "impl_tf compiled, skip_padding", precision, compiles=True, skips=True, start=skipping))
    return result


def _searches(problem: Problem, precision: str) -> list[Row]:
    """Returns searches on a snapshot of the model in the precision of the weights."""

    def start() -> Call:
        from impl_tf.decoding import Searcher

        searcher = Searcher(_ours(problem), dtype=precision if precision in ("bfloat16", "int8") else None)
        search = searcher.greedy_search if problem.task.kind == "greedy" else searcher.beam_search
        given = {name: optional(tf_stock.ids)(token) for name, token in problem.question.items()}
        return _on_cpu(functools.partial(search, strategy=problem.strategy, **given))

    return [Row("tf", "impl_tf compiled", precision, compiles=True, start=start)]


def _training_rows(problem: Problem) -> list[Row]:
    row, (stock, build) = functools.partial(training_row, problem=problem, compiles=True), _stock(problem)
    return [
        row("tf", "impl_tf compiled", _trainer),
        row("tf", f"{stock} compiled", functools.partial(tf_stock.training, build, True), peer=True),
        row("tf", f"{stock} compiled, no XLA", functools.partial(tf_stock.training, build, False), peer=True),
    ]


def _stock(problem: Problem) -> tuple[str, Callable[[Problem], Any]]:
    """Returns the peer with our models' call signature."""
    if problem.task.published:
        return f"keras_hub {problem.task.published}", keras_hub.Decoder
    return "keras.layers", tf_stock.build


def _on_cpu(call: Call) -> Call:
    def run() -> Any:
        with tf.device(CPU):
            return call()

    return run


def _ours(problem: Problem, precision: str = "float32") -> Transformer:
    if precision == "int8":
        return fused(_ours(problem), precision)
    kind = tf.as_dtype(precision).as_numpy_dtype
    return transformer("tf", problem.config, {name: tensor.astype(kind) for name, tensor in problem.tensors.items()})


def _trainer(problem: Problem) -> Step:
    trainer = Trainer(problem.config, problem.recipe, problem.tensors)
    return lambda: trainer.train_step(problem.encoded, problem.sequence)


def _products(problem: Problem) -> Call:
    """Runs each matrix product on its own matrices, as in a model."""
    pairs = [[tf.random.stateless_normal(shape, (0, index)) for index, shape in enumerate(shapes)] for shapes in products(problem)]

    def call() -> None:
        for left, right in pairs:
            tf.matmul(left, right)

    return _on_cpu(call)
