"""impl_torch, and the peers that share its process."""

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # compile times are those of a first run

import torch
from torch import Tensor

from impl_torch import weights
from impl_torch.fast.compiled import compiled
from impl_torch.training import Trainer
from impl_torch.transformer import Transformer

from ..problem import Problem, products
from ..rows import Call, Row, Step, training_row
from . import huggingface, torch_stock, xtransformers

__all__ = ["describe", "rows"]

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}


def describe(device: str) -> str:
    """The device and the threads. Raises ValueError where there is no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda needs a CUDA device; torch sees none")
    return torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"


def rows(problem: Problem, device: str) -> list[Row]:
    """Eager and compiled, in every precision of the task; then the peers."""
    _start_compiler()
    task, result = problem.task, []
    for precision in task.precisions_on(device):
        if task.kind == "training":
            result += _training_rows(problem, device, precision)
        elif task.decodes:
            result += _searches(problem, device, precision)
        else:
            result += _passes(problem, device, precision)
    if task.others or (task.decodes and task.peers):
        result += huggingface.rows(problem, device) + xtransformers.rows(problem, device)
    return result


def _placed(problem: Problem, device: str, precision: str) -> Callable[[Callable[[], Any]], Call]:
    """What every call of a row is wrapped in: the precision of products, no gradients, and the wait for a device."""

    def wrap(call: Callable[[], Any]) -> Call:
        @torch.inference_mode()
        def run() -> Any:
            torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
            result = call()
            if device == "cuda":
                torch.cuda.synchronize()
            return result

        return run

    return wrap


def _passes(problem: Problem, device: str, precision: str) -> list[Row]:
    """Forward passes, or those of the encoder alone."""
    encodes = problem.task.kind == "encoder"
    source, target = (weights.from_numpy(token, device) for token in (problem.source, problem.target))
    arguments = (source,) if encodes else (source, target)
    wrap = _placed(problem, device, precision)
    about: dict[str, Any] = {"read": _logits, "precision": precision}

    def start(build: Callable[[Problem], Any], compiler: Callable[..., Any] | None) -> Call:
        model = build(problem).to(device, DTYPES[precision]).eval()
        function = model.encode if encodes else model
        return wrap(functools.partial(compiler(function) if compiler else function, *arguments))

    pairs: list[tuple[str, Callable[..., Any], Callable[..., Any]]] = [("impl_torch", _ours, compiled)]
    if problem.task.peers:
        pairs.append(("torch.nn.Transformer", torch_stock.build, torch.compile))
    result = []
    for name, build, compiler in pairs:
        peer = build is not _ours
        result.append(Row("torch", f"{name} eager", functools.partial(start, build, None), peer=peer, **about))
        result.append(Row("torch", f"{name} compiled", functools.partial(start, build, compiler), peer=peer, compiles=True, **about))
    if problem.task.ceiling:
        alone = lambda: wrap(_products(problem, device, precision))  # noqa: E731
        result.append(Row("torch", "torch's matrix products alone", alone, ceiling=True, **about))
    return result


def _searches(problem: Problem, device: str, precision: str) -> list[Row]:
    """Of a snapshot of the model, whose weights have the precision."""
    wrap = _placed(problem, device, precision)

    def start(compiles: bool) -> Call:
        from impl_torch.decoding import Searcher

        dtype = torch.bfloat16 if precision == "bfloat16" else None
        searcher = Searcher(_ours(problem).to(device).eval(), dtype=dtype, compiled=compiles)
        search = searcher.greedy_search if problem.task.kind == "greedy" else searcher.beam_search
        return wrap(functools.partial(search, weights.from_numpy(problem.source, device), problem.strategy))

    return [
        Row("torch", f"impl_torch {how}", functools.partial(start, compiles), _answers, precision, compiles=compiles)
        for how, compiles in (("eager", False), ("compiled", True))
    ]


def _training_rows(problem: Problem, device: str, precision: str) -> list[Row]:
    result = []
    for name, start in (("impl_torch", _trainer), ("torch.nn.Transformer", torch_stock.training)):
        for how, compiles in (("eager", False), ("compiled", True)):
            begin = functools.partial(_training, start, device, precision, compiles)
            about: dict[str, Any] = {"precision": precision, "peer": start is not _trainer, "compiles": compiles}
            result.append(training_row("torch", f"{name} {how}", begin, problem, **about))
    return result


def _training(start: Callable[..., Step], device: str, precision: str, compiles: bool, problem: Problem) -> Step:
    step = start(problem, device, compiles)

    def run() -> Tensor:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        loss = step()
        if device == "cuda":
            torch.cuda.synchronize()  # the loss is there before the update
        return loss

    return run


def _ours(problem: Problem) -> Transformer:
    model = Transformer(problem.config)
    weights.load(model, problem.tensors, problem.config)
    return model


def _trainer(problem: Problem, device: str, compiles: bool) -> Step:
    trainer = Trainer(problem.config, problem.recipe, problem.tensors, device=device, compiled=compiles)
    return lambda: trainer.train_step(problem.source, problem.sequence)


def _products(problem: Problem, device: str, precision: str) -> Call:
    """Each on matrices of its own, as in a model."""
    generator = torch.Generator(device).manual_seed(0)
    pairs = []
    for count, rows, inner, columns in products(problem):
        shapes = ((rows, inner), (inner, columns)) if count == 1 else ((count, rows, inner), (count, inner, columns))
        pairs.append([torch.randn(shape, generator=generator, device=device, dtype=DTYPES[precision]) for shape in shapes])

    def call() -> None:
        for left, right in pairs:
            torch.matmul(left, right)

    return call


def _logits(logits: Tensor) -> dict[str, np.ndarray]:
    return {"output": weights.to_numpy(logits.float())}


def _answers(found: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Those of a search, by the names that are compared."""
    arrays = {name: weights.to_numpy(tensor) for name, tensor in found.items()}
    if "token_bwn" in arrays:
        return {"token_bn": arrays["token_bwn"][:, 0], "score_b": arrays["score_bw"][:, 0]}
    return arrays


def _start_compiler() -> None:
    """So that no row pays for it."""
    warnings.filterwarnings("ignore", message=".*(nested tensors|force_disable_caches)", category=UserWarning)
    torch.compile(lambda x: -x)(torch.zeros(1))
