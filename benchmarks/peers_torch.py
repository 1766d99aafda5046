"""impl_torch beside `torch.nn.Transformer`, and the NumPy truth's forward pass beside both."""

import copy
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # compile times are those of a first run

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from impl_torch import weights
from impl_torch.compiled import compiled
from impl_torch.schedule import noam
from impl_torch.training import Trainer
from impl_torch.transformer import Transformer
from reference_numpy import TransformerConfig, parameters
from reference_numpy import transformer as truth
from reference_numpy.positional_encoding import positional_encoding
from rosettaformer.checkpoints.torch_transformer import export_state_dict

from .measure import LOSS_BOUNDS, PRECISIONS, Row, Step, training_row
from .problem import LENGTH, PADDING, Problem

__all__ = ["describe", "rows", "training_rows"]


class Stock(nn.Module):
    """`nn.Transformer` with embeddings, positions and masks before it and an output layer behind it.

    Dropout is where the paper has it; `nn.Transformer` would also drop attention weights and hidden units.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = nn.Embedding(config.source_vocabulary, config.model_width)
        self.target_embedding = nn.Embedding(config.target_vocabulary, config.model_width)
        self.transformer = nn.Transformer(
            config.model_width, config.heads, config.encoder_layers, config.decoder_layers, config.feed_forward_width,
            config.dropout_rate, config.activation, layer_norm_eps=config.epsilon, batch_first=True,
        )  # fmt: skip
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0
        self.dropout = nn.Dropout(config.dropout_rate)
        self.logits = nn.Linear(config.model_width, config.target_vocabulary)
        table = torch.from_numpy(positional_encoding(np.arange(LENGTH), config.model_width, "float32"))
        self.register_buffer("position", table, persistent=False)
        self.register_buffer("future", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        no_source, no_target = source == PADDING, target == PADDING
        scale = self.config.model_width**0.5
        y = self.transformer(
            self.dropout(self.source_embedding(source) * scale + self.position),
            self.dropout(self.target_embedding(target) * scale + self.position),
            tgt_mask=self.future,
            tgt_is_causal=True,  # unsaid, it is found out from the values, which breaks the compiled graph
            src_key_padding_mask=no_source,
            tgt_key_padding_mask=no_target,
            memory_key_padding_mask=no_source,
        )
        return self.logits(y)


def rows(problem: Problem, device: str) -> list[Row]:
    """Eager and compiled, ours and stock, in every precision of the device."""
    _start_compiler()
    ours, stock = Transformer(problem.config), _stock(problem)
    weights.load(ours, problem.tensors, problem.config)
    result = [_numpy_row(problem)] if device == "cpu" else []
    for precision in PRECISIONS[device]:
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        for name, model, compiler in (("impl_torch", ours, compiled), ("torch.nn.Transformer", stock, torch.compile)):
            module = copy.deepcopy(model).to(device, dtype).eval()
            row = functools.partial(_row, problem, device, precision, model is stock)
            result += [row(f"{name} eager", module), row(f"{name} compiled", compiler(module), compiles=True)]
    return result


def training_rows(problem: Problem, device: str) -> list[Row]:
    """Eager and compiled, ours and stock, in every precision of the device in which float32 parameters are trained."""
    _start_compiler()
    result = []
    for precision in (precision for precision in PRECISIONS[device] if precision in LOSS_BOUNDS):
        for name, start in (("impl_torch", _trainer), ("torch.nn.Transformer", _stock_training)):
            for how, compiles in (("eager", False), ("compiled", True)):
                begin = functools.partial(_training, start, device, precision, compiles)
                about: dict[str, Any] = {"precision": precision, "stock": start is _stock_training, "compiles": compiles}
                result.append(training_row("torch", f"{name} {how}", begin, problem, **about))
    return result


def describe(device: str) -> str:
    """The device and the threads. Raises ValueError where there is no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda needs a CUDA device; torch sees none")
    return torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"


def _row(problem: Problem, device: str, precision: str, stock: bool, name: str, model: Callable[..., Any], compiles: bool = False) -> Row:
    source, target = (weights.from_numpy(token, device) for token in (problem.source, problem.target))

    @torch.inference_mode()
    def call() -> Tensor:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        logits = model(source, target)
        if device == "cuda":
            torch.cuda.synchronize()
        return logits

    return Row("torch", name, call, lambda logits: weights.to_numpy(logits.float()), precision, stock, compiles)


def _numpy_row(problem: Problem) -> Row:
    nested = parameters.nest(problem.tensors)
    return Row("numpy", "reference_numpy", lambda: truth.transformer(nested, problem.config, problem.source, problem.target))


def _stock(problem: Problem) -> Stock:
    stock, state = Stock(problem.config), export_state_dict(problem.config, problem.tensors)
    stock.load_state_dict({name: weights.from_numpy(tensor) for name, tensor in state.items()})
    return stock


def _start_compiler() -> None:
    """So that no row pays for it."""
    warnings.filterwarnings("ignore", message=".*(nested tensors|force_disable_caches)", category=UserWarning)
    torch.compile(lambda x: -x)(torch.zeros(1))


def _training(start: Callable[..., Step], device: str, precision: str, compiles: bool, problem: Problem) -> Step:
    step = start(problem, device, compiles)

    def run() -> Tensor:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        loss = step()
        if device == "cuda":
            torch.cuda.synchronize()  # the loss is there before the update
        return loss

    return run


def _trainer(problem: Problem, device: str, compiles: bool) -> Step:
    trainer = Trainer(problem.config, problem.recipe, problem.tensors, device=device, compiled=compiles)
    return lambda: trainer.train_step(problem.source, problem.sequence)


def _stock_training(problem: Problem, device: str, compiles: bool) -> Step:
    """The step as a user of torch writes it: loss and gradients as one graph, the update as one fused kernel."""
    config, recipe = problem.config, problem.recipe
    model = _stock(problem).to(device).train()
    source, target = (weights.from_numpy(token, device) for token in (problem.source, problem.sequence))
    optimizer = torch.optim.Adam(model.parameters(), 1.0, (recipe.beta_1, recipe.beta_2), recipe.epsilon, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: float(noam(done + 1, config.model_width, recipe.warmup)))

    def mean_loss(source: Tensor, target: Tensor) -> Tensor:
        logits, label = model(source, target[:, :-1]), target[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), label.flatten(), ignore_index=PADDING, label_smoothing=recipe.smoothing)

    loss_of = torch.compile(mean_loss, dynamic=False) if compiles else mean_loss

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(source, target)
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    return step
