"""`x_transformers.XTransformer`: pre-norm with learned positions, so that only its sizes are the same."""

import functools
from typing import Any

import torch
from torch import Tensor

from impl_torch import weights

from ..problem import Problem
from ..timed_rows import Call, Row
from ..workloads import PADDING, START
from .torch_stock import read, waiting


def rows(problem: Problem, device: str) -> list[Row]:
    """Returns a row for its greedy search, with its cache, or its forward pass, compiled."""
    start = functools.partial(_search if problem.task.decodes else _pass, problem, device)
    if problem.task.kind == "greedy":
        return [Row("torch", "x-transformers", peer=True, comparable=False, start=start, read=read)]
    if problem.task.kind == "forward":
        return [Row("torch", "x-transformers compiled", peer=True, compiles=True, comparable=False, start=start, read=read)]
    return []


def _build(problem: Problem, device: str, target_length: int) -> Any:
    from x_transformers import XTransformer

    config = problem.config
    model = XTransformer(
        dim=config.model_width, tie_token_emb=True, pad_value=PADDING,
        enc_num_tokens=config.source_vocabulary, enc_depth=config.encoder_layers, enc_heads=config.heads,
        enc_max_seq_len=problem.task.length, enc_attn_dim_head=config.key_size, enc_attn_flash=True,
        dec_num_tokens=config.target_vocabulary, dec_depth=config.decoder_layers, dec_heads=config.heads,
        dec_max_seq_len=target_length, dec_attn_dim_head=config.key_size, dec_attn_flash=True,
    )  # fmt: skip
    return model.to(device).eval()


def _pass(problem: Problem, device: str) -> Call:
    model = _build(problem, device, problem.task.length)
    source, target = (weights.from_numpy(token, device) for token in (problem.source, problem.target))
    source_mask, target_mask = source != PADDING, target != PADDING

    @torch.compile
    def logits() -> Tensor:
        memory = model.encoder(source, mask=source_mask, return_embeddings=True)
        return model.decoder.net(target, mask=target_mask, context=memory, context_mask=source_mask)

    return waiting(logits, device)


def _search(problem: Problem, device: str) -> Call:
    task = problem.task
    model = _build(problem, device, task.new_tokens + 1)
    source = weights.from_numpy(problem.source, device)
    begin, mask = torch.full((task.batch, 1), START, device=device), source != PADDING
    options: dict[str, Any] = {"mask": mask, "temperature": 0.0, "cache_kv": True}
    return waiting(lambda: {"token_bn": model.generate(source, begin, task.new_tokens, **options)}, device)
