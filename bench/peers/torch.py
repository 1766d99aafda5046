"""impl_torch, and the peers that share its process."""

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # so that compile times are those of a first run

import torch
from torch import nn

from impl_torch import weights
from impl_torch.programs.compiled import compiled
from impl_torch.programs.fused import fused
from impl_torch.programs.unpadding import real_logits, unpadded
from impl_torch.training import Trainer
from impl_torch.transformer import Transformer
from rosettaformer.common.backends import transformer
from rosettaformer.common.modules import torch as modules
from rosettaformer.comparison.timing.rows import Call, Row

from ..problem import Problem, optional, products
from ..timed_rows import Step, training_row
from . import huggingface, torch_stock

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
WAYS = (huggingface.EAGER, huggingface.COMPILED)


def describe(device: str) -> str:
    """Returns the device and threads. Raises ValueError if the device does not exist."""
    modules.device(device, ("cpu", "cuda"))
    return torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"


def rows(problem: Problem, device: str) -> list[Row]:
    """Returns eager and compiled rows in every precision of the task, and the peers."""
    # starts the compiler, so that no row is charged for it
    warnings.filterwarnings("ignore", message=".*(nested tensors|force_disable_caches)", category=UserWarning)
    torch.compile(lambda x: -x)(torch.zeros(1))
    task, result = problem.task, []
    make = _training_rows if task.kind == "training" else _searches if task.decodes else _passes
    for precision in task.precisions_on(device, of=[*DTYPES, "int8"]):
        result += make(problem, device, precision)
    if task.published or (task.decodes and task.peers):
        result += huggingface.rows(problem, device)
    return result


def _passes(problem: Problem, device: str, precision: str) -> list[Row]:
    """Returns forward passes, or only the encoder's."""

    def start(build: Callable[[Problem], Any], compiler: Callable[..., Any]) -> Call:
        model = build(problem).to(device, DTYPES.get(precision)).eval()
        function = compiler(model.encode if problem.task.kind == "encoder" else model)
        tokens = map(optional(lambda token: weights.from_numpy(token, device)), problem.inputs)
        return torch_stock.waiting(functools.partial(function, *tokens), device, precision)

    def row(name: str, start: Callable[[], Call], **about: Any) -> Row:
        return Row("torch", name, precision, start=start, read=torch_stock.read, **about)

    result: list[Row] = []
    encodes = problem.task.kind == "encoder"
    if precision == "int8":
        int8 = lambda problem: fused(_ours(problem), "int8")  # noqa: E731
        return [
            row(f"impl_torch {how}", functools.partial(start, int8, compiler), compiles=compiles)
            for (how, compiles), compiler in zip(WAYS, (lambda model: model, compiled), strict=True)
        ]
    for name, build, ways in (("impl_torch", _ours, WAYS), *_stock(problem)):
        peer = build is not _ours
        for how, compiles in ways if not peer or (problem.task.peers and not (encodes and problem.task.published)) else ():
            eager = (lambda function: function) if peer else _unpadded
            compiler: Callable[..., Any] = (torch.compile if peer else compiled) if compiles else eager
            result.append(row(f"{name} {how}", functools.partial(start, build, compiler), peer=peer, compiles=compiles))
    if problem.task.published:
        snapshot = functools.partial(start, lambda problem: fused(_ours(problem)), compiled)
        result.insert(2, row("impl_torch snapshot compiled", snapshot, compiles=True))
    if problem.task.skips:
        skipping = functools.partial(start, _ours, lambda model: compiled(functools.partial(real_logits, model)))
        result.insert(2, row("impl_torch compiled, skip_padding", skipping, compiles=True, skips=True))
    if problem.task.ceiling:
        result.append(row("torch's matrix products only", functools.partial(_products, problem, device, precision), ceiling=True))
    return result


def _stock(problem: Problem) -> list[tuple[str, Callable[[Problem], nn.Module], Sequence[tuple[str, bool]]]]:
    """Returns the peers with our models' call signature, and the ways to run them."""
    if problem.task.published:
        return [(name, functools.partial(huggingface.Decoder, **options), ways) for name, options, ways in huggingface.kinds(problem)]
    return [("torch.nn.Transformer", torch_stock.build, WAYS)]


def _unpadded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the model run without its padding; for an encoder, every row is an output."""
    return unpadded(function) if isinstance(function, Transformer) else function


def _searches(problem: Problem, device: str, precision: str) -> list[Row]:
    """Returns searches on a snapshot of the model in the precision of the weights."""

    def start(compiles: bool) -> Call:
        from impl_torch.decoding import Searcher

        dtype: Any = {"bfloat16": torch.bfloat16, "int8": "int8"}.get(precision)
        searcher = Searcher(_ours(problem).to(device).eval(), dtype=dtype, compiled=compiles)
        search = searcher.greedy_search if problem.task.kind == "greedy" else searcher.beam_search
        place = optional(lambda token: weights.from_numpy(token, device))
        given = {name: place(token) for name, token in problem.question.items()}
        return torch_stock.waiting(functools.partial(search, strategy=problem.strategy, **given), device, precision)

    return [
        Row("torch", f"impl_torch {how}", precision, compiles=compiles, start=functools.partial(start, compiles), read=torch_stock.read)
        for how, compiles in WAYS
    ]


def _training_rows(problem: Problem, device: str, precision: str) -> list[Row]:
    def start(build: Callable[..., Step], compiles: bool, given: Problem) -> Step:
        return torch_stock.placed(build(given, device, compiles), device, precision)

    row = functools.partial(training_row, problem=problem, precision=precision)
    builds: list[tuple[str, Callable[..., Step], Sequence[tuple[str, bool]]]] = [("impl_torch", _trainer, WAYS)]
    builds += [(name, functools.partial(torch_stock.training, build), ways) for name, build, ways in _stock(problem)]
    return [
        row("torch", f"{name} {how}", functools.partial(start, build, compiles), peer=build is not _trainer, compiles=compiles)
        for name, build, ways in builds
        for how, compiles in ways
    ]


def _ours(problem: Problem) -> Transformer:
    return transformer("torch", problem.config, problem.tensors)


def _trainer(problem: Problem, device: str, compiles: bool) -> Step:
    trainer = Trainer(problem.config, problem.recipe, problem.tensors, device=device, compiled=compiles)
    return lambda: trainer.train_step(problem.encoded, problem.sequence)


def _products(problem: Problem, device: str, precision: str) -> Call:
    """Runs each matrix product on its own matrices, as in a model."""
    generator = torch.Generator(device).manual_seed(0)
    make = functools.partial(torch.randn, generator=generator, device=device, dtype=DTYPES[precision])
    pairs = [(make(left), make(right)) for left, right in products(problem)]

    def call() -> None:
        for left, right in pairs:
            torch.matmul(left, right)

    return torch_stock.waiting(call, device, precision)
