"""`torch.nn.Transformer` and a training step, as a PyTorch user writes them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from impl_torch import weights
from impl_torch.schedule import noam
from reference_numpy import TransformerConfig
from reference_numpy.positional_encoding import positional_encoding
from rosettaformer.comparison.timing.rows import Call, named
from rosettaformer.files.checkpoints.torch_transformer import export_state_dict

from ..problem import Problem, optional
from ..timed_rows import Step
from ..workloads import PADDING


class Stock(nn.Module):
    """`nn.Transformer` with embeddings, positions and masks, and an output layer.

    Dropout is where the paper has it; `nn.Transformer` would also drop attention weights and hidden
    units.
    """

    def __init__(self, config: TransformerConfig, length: int) -> None:
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
        table = torch.from_numpy(positional_encoding(np.arange(length), config.model_width, "float32"))
        self.register_buffer("position", table, persistent=False)
        self.register_buffer("future", torch.ones(length, length, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        no_source, no_target = source == PADDING, target == PADDING
        y = self.transformer(
            self._embed(self.source_embedding, source),
            self._embed(self.target_embedding, target),
            tgt_mask=self.future,
            tgt_is_causal=True,  # otherwise derived from values, which breaks the compiled graph
            src_key_padding_mask=no_source,
            tgt_key_padding_mask=no_target,
            memory_key_padding_mask=no_source,
        )
        return self.logits(y)

    def encode(self, source: Tensor) -> Tensor:
        return self.transformer.encoder(self._embed(self.source_embedding, source), src_key_padding_mask=source == PADDING)

    def _embed(self, embedding: nn.Embedding, token: Tensor) -> Tensor:
        return self.dropout(embedding(token) * self.config.model_width**0.5 + self.position)


def build(problem: Problem) -> Stock:
    """Builds the model with the problem's weights."""
    stock, state = Stock(problem.config, problem.task.length), export_state_dict(problem.config, problem.tensors)
    stock.load_state_dict({name: weights.from_numpy(tensor) for name, tensor in state.items()})
    return stock


def training(build: Callable[[Problem], nn.Module], problem: Problem, device: str, compiles: bool) -> Step:
    """Computes loss and gradients in one graph, and updates with one fused kernel."""
    config, recipe = problem.config, problem.recipe
    model, place = build(problem).to(device).train(), optional(lambda token: weights.from_numpy(token, device))
    source, target = place(problem.encoded), place(problem.sequence)
    optimizer = torch.optim.Adam(model.parameters(), 1.0, (recipe.beta_1, recipe.beta_2), recipe.epsilon, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: float(noam(done + 1, config.model_width, recipe.warmup)))

    def mean_loss(source: Tensor | None, target: Tensor) -> Tensor:
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


def placed(call: Call, device: str, precision: str = "float32") -> Call:
    """Runs the call with matmuls in that precision, and waits for it."""

    def run() -> Any:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        result = call()
        if device == "cuda":
            torch.cuda.synchronize()
        return result

    return run


def waiting(call: Call, device: str, precision: str = "float32") -> Call:
    """Does the same without gradients."""
    return torch.inference_mode()(placed(call, device, precision))


def read(result: Tensor | Mapping[str, Tensor]) -> Mapping[str, np.ndarray]:
    """Returns a call's result in the form of `rows.named`."""
    if isinstance(result, Mapping):
        return named({name: weights.to_numpy(tensor) for name, tensor in result.items()})
    return named(weights.to_numpy(result))
