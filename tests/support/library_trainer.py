"""A Trainer for the usual training with transformers: its Llama with torch's AdamW and schedule.

`compare-training` takes it as a file. It does not split batches, since the parts add up to the whole.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from decoder_folders import all_in_float64, loaded
from hugging_face_folders import library_loss

from reference_numpy import TransformerConfig
from reference_numpy.recipe import Recipe
from rosettaformer.files import checkpoints
from rosettaformer.files.checkpoints import tables
from rosettaformer.files.checkpoints.hugging_face import FAMILIES

LLAMA = FAMILIES["llama"]


class Trainer:
    """Trains a decoder-only model without dropout in float64."""

    def __init__(self, config: TransformerConfig, recipe: Recipe, values: Mapping[str, np.ndarray], *_: Any) -> None:
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "model"
            checkpoints.save(folder, config.replace(padding_id=None), values, "hugging-face")
            self._model = loaded(folder, "LlamaForCausalLM", "sdpa")
        kernels, scales = ([value for value in self._model.parameters() if (value.ndim > 1) == kernel] for kernel in (True, False))
        self._optimiser = torch.optim.AdamW(
            [{"params": kernels}, {"params": scales, "weight_decay": 0.0}],
            lr=config.model_width**-0.5, betas=(recipe.beta_1, recipe.beta_2), eps=recipe.epsilon, weight_decay=recipe.weight_decay,
        )  # fmt: skip
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimiser, lambda done: min((done + 1) ** -0.5, (done + 1) * recipe.warmup**-1.5)
        )
        self._recipe, self._natives = recipe, {native.name: native for native in tables.natives(LLAMA.table, config)}

    def train_step(self, source: None, target: np.ndarray, keep: object = None) -> float:
        with all_in_float64():
            loss = library_loss(self._model, target, self._recipe.smoothing)
        self._optimiser.zero_grad()
        loss.backward()
        gradients = [value.grad for value in self._model.parameters()]
        factor = (self._recipe.clip_norm or np.inf) / torch.nn.utils.get_total_norm(gradients)
        torch._foreach_mul_(gradients, factor.clamp(max=1.0))  # clip_grad_norm_ adds 1e-6 to the norm
        self._optimiser.step()
        self._schedule.step()
        return loss.item()

    def state(self) -> dict[str, np.ndarray]:
        """Returns the parameters by canonical name."""
        found: dict[str, np.ndarray] = {}
        for name, value in self._model.named_parameters():
            found |= tables.split(self._natives[LLAMA.native(name)], value.detach().numpy().copy())
        return {f"parameters.{name}": array for name, array in found.items()}
