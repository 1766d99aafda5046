"""The PyTorch port as a model for use: eager, with fused projections in a decoder."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from impl_torch import cache, weights
from impl_torch.programs.fused import fused, pack
from reference_numpy import TransformerConfig

from ..backends import transformer
from ..modules import torch as modules
from ..modules.nests import mapped
from .models import Model


class BackendModel(Model):
    """`models.Model`, in PyTorch. int8: of the projections of a decoder. Raises ValueError on a device that torch does not have."""

    def __init__(self, config: TransformerConfig, parameters: Mapping[str, np.ndarray], device: str, int8: bool = False) -> None:
        self.config, self._device = config, modules.device(device, ("cpu", "cuda"))
        self._model = transformer("torch", config, parameters, self._device).eval().requires_grad_(False)
        self._decoding: Any = fused(self._model, "int8" if int8 else None) if config.decoder_layers else None

    @torch.inference_mode()
    def start(self, rows: int, length: int) -> Any:
        pack(self._decoding, rows)
        return cache.start_cache(self._decoding, None, batch=rows, length=length)

    @torch.inference_mode()
    def read(self, token_bt: np.ndarray, mask_bt: np.ndarray, cache_: Any) -> tuple[np.ndarray, Any]:
        logits_btv, cache_ = cache.decode_step(self._decoding, self._tensor(token_bt), cache_, self._tensor(mask_bt))
        return weights.to_numpy(logits_btv[:, -1]), cache_

    @torch.inference_mode()
    def reorder(self, cache_: Any, row_b: np.ndarray) -> Any:
        return cache.reorder(cache_, self._tensor(row_b))

    @torch.inference_mode()
    def run(self, method: str, **inputs: np.ndarray | None) -> Any:
        found = getattr(self._model, method)(**{name: self._tensor(array) for name, array in inputs.items()})
        return mapped(found, weights.to_numpy)

    def _tensor(self, array: np.ndarray | None) -> Any:
        return None if array is None else weights.from_numpy(array, self._device)
