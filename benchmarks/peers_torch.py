"""impl_torch beside `torch.nn.Transformer`, and the NumPy truth beside both."""

import copy
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # compile times are those of a first run

import torch
from torch import Tensor, nn

from impl_torch import weights
from impl_torch.compiled import compiled
from impl_torch.transformer import Transformer
from reference_numpy import TransformerConfig, parameters
from reference_numpy import transformer as truth
from reference_numpy.positional_encoding import positional_encoding
from rosettaformer.checkpoints.torch_transformer import export_state_dict

from .measure import PRECISIONS, Row
from .problem import LENGTH, PADDING, Problem

__all__ = ["describe", "rows"]


class Stock(nn.Module):
    """`nn.Transformer` with embeddings, positions and masks before it and an output layer behind it."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = nn.Embedding(config.source_vocabulary, config.model_width)
        self.target_embedding = nn.Embedding(config.target_vocabulary, config.model_width)
        self.transformer = nn.Transformer(
            config.model_width, config.heads, config.encoder_layers, config.decoder_layers, config.feed_forward_width,
            config.dropout_rate, config.activation, layer_norm_eps=config.epsilon, batch_first=True,
        )  # fmt: skip
        self.logits = nn.Linear(config.model_width, config.target_vocabulary)
        table = torch.from_numpy(positional_encoding(np.arange(LENGTH), config.model_width, "float32"))
        self.register_buffer("position", table, persistent=False)
        self.register_buffer("future", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        no_source, no_target = source == PADDING, target == PADDING
        scale = self.config.model_width**0.5
        y = self.transformer(
            self.source_embedding(source) * scale + self.position,
            self.target_embedding(target) * scale + self.position,
            tgt_mask=self.future,
            tgt_is_causal=True,  # unsaid, it is found out from the values, which breaks the compiled graph
            src_key_padding_mask=no_source,
            tgt_key_padding_mask=no_target,
            memory_key_padding_mask=no_source,
        )
        return self.logits(y)


def rows(problem: Problem, device: str) -> list[Row]:
    """Eager and compiled, ours and stock, in every precision of the device. Raises ValueError where there is no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda needs a CUDA device; torch sees none")
    warnings.filterwarnings("ignore", message=".*(nested tensors|force_disable_caches)", category=UserWarning)
    torch.compile(lambda x: -x)(torch.zeros(1))  # starts the compiler, so that no row pays for it
    config = problem.config
    ours, stock = Transformer(config), Stock(config)
    weights.load(ours, problem.tensors, config)
    state = export_state_dict(config, problem.tensors)
    stock.load_state_dict({name: weights.from_numpy(tensor) for name, tensor in state.items()})
    result = [_numpy_row(problem)] if device == "cpu" else []
    for precision in PRECISIONS[device]:
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        for name, model, compiler in (("impl_torch", ours, compiled), ("torch.nn.Transformer", stock, torch.compile)):
            module = copy.deepcopy(model).to(device, dtype).eval()
            row = functools.partial(_row, problem, device, precision, model is stock)
            result += [row(f"{name} eager", module), row(f"{name} compiled", compiler(module), compiles=True)]
    return result


def describe(device: str) -> str:
    """The device and the threads."""
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
