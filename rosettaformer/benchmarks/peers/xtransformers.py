"""`x_transformers.XTransformer`: pre-norm and with learned positions, so of the same sizes alone."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from impl_torch import weights

from ..problem import Problem
from ..rows import Call, Row
from ..workloads import PADDING, START

__all__ = ["rows"]


def rows(problem: Problem, device: str) -> list[Row]:
    """Its greedy search, with its cache."""

    def start() -> Call:
        from x_transformers import XTransformer

        config, task = problem.config, problem.task
        model: Any = XTransformer(
            dim=config.model_width, tie_token_emb=True, pad_value=PADDING,
            enc_num_tokens=config.source_vocabulary, enc_depth=config.encoder_layers, enc_heads=config.heads,
            enc_max_seq_len=task.length, enc_attn_dim_head=config.key_size, enc_attn_flash=True,
            dec_num_tokens=config.target_vocabulary, dec_depth=config.decoder_layers, dec_heads=config.heads,
            dec_max_seq_len=task.new_tokens + 1, dec_attn_dim_head=config.key_size, dec_attn_flash=True,
        )  # fmt: skip
        model = model.to(device).eval()
        source = weights.from_numpy(problem.source, device)
        begin, mask = torch.full((task.batch, 1), START, device=device), source != PADDING

        @torch.inference_mode()
        def call() -> Tensor:
            token = model.generate(source, begin, task.new_tokens, mask=mask, temperature=0.0, cache_kv=True)
            if device == "cuda":
                torch.cuda.synchronize()
            return token

        return call

    return [Row("torch", "x-transformers", start, _read, peer=True, comparable=False)] if problem.task.kind == "greedy" else []


def _read(token: Tensor) -> dict[str, np.ndarray]:
    return {"token_bn": weights.to_numpy(token)}
