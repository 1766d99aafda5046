"""Runs the PyTorch port as a `models.Model`: eager, with fused projections in decoders."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import torch

from impl_torch import weights
from impl_torch.programs import static_cache
from impl_torch.programs.fused import fused, pack
from impl_torch.transformer import Transformer
from impl_torch.values import Text
from reference_numpy import TransformerConfig, layout

from ...common.modules import torch as modules
from ...common.modules.nests import mapped
from ...files.checkpoints.container import release
from .models import Model


class BackendModel(Model):
    """`models.Model` in PyTorch. Raises ValueError on a device that torch lacks.

    The model is built on first use. For decoding, its projections are fused in place, so that the
    weights are in memory once.
    """

    def __init__(self, config: TransformerConfig, parameters: Mapping[str, np.ndarray], dtype: np.dtype, device: str, int8: bool) -> None:
        self.config, self._parameters, self._dtype = config, parameters, dtype
        self._device, self._int8 = modules.device(device, ("cpu", "cuda")), int8

    @cached_property
    def _model(self) -> Any:
        """The Transformer. Parameters are rounded and copied one at a time."""
        empty = self._empty().to(getattr(torch, str(self._dtype)))
        model = empty.to_empty(device="cpu").eval().requires_grad_(False)
        for name, array in self._arrays():
            np.copyto(_shared(model.get_parameter(name)), array, casting="unsafe")
            release(array)
        return model.to(self._device)

    def _empty(self) -> Any:
        """Returns the Transformer on the meta device."""
        with torch.device("meta"):
            return Transformer(self.config)

    def _arrays(self) -> Iterable[tuple[str, np.ndarray]]:
        """Returns the parameters by their PyTorch names."""
        return layout.to_native(self._parameters, weights.TABLE, self.config).items()

    @cached_property
    def _decoding(self) -> Any:
        """The model with fused projections; it replaces `_model`, which is rebuilt if needed."""
        model = self._model
        del self._model
        vars(model)["__deepcopy__"] = lambda memo: model  # `fused` may change it: there is no other reference
        made = fused(model, "int8" if self._int8 else None)
        del vars(made)["__deepcopy__"]
        return made

    @torch.inference_mode()
    def start(self, rows: int, length: int, source: tuple[np.ndarray, np.ndarray] | None = None) -> Any:
        pack(self._decoding, rows)
        if source is None:
            return static_cache.start_cache(self._decoding, None, batch=rows, length=length)
        source_bs, mask_bs = map(self._tensor, source)
        memory = (self._decoding.encode(Text(source_bs, mask_bs)), mask_bs)
        memory_bsd, mask_bs = (array.repeat_interleave(rows // len(array), dim=0) for array in memory)
        return static_cache.start_cache(self._decoding, memory_bsd, mask_bs, length=length)

    @torch.inference_mode()
    def read(self, token_bt: np.ndarray, mask_bt: np.ndarray, cache_: Any) -> tuple[np.ndarray, Any]:
        logits_btv, cache_ = static_cache.decode_step(self._decoding, self._tensor(token_bt), cache_, self._tensor(mask_bt))
        return weights.to_numpy(logits_btv[:, -1]), cache_

    @torch.inference_mode()
    def reorder(self, cache_: Any, row_b: np.ndarray) -> Any:
        return static_cache.reorder(cache_, self._tensor(row_b))

    @torch.inference_mode()
    def run(self, method: str, **inputs: np.ndarray | None) -> Any:
        given = {name: self._tensor(array) for name, array in inputs.items()}
        sides = {"source": ("source_mask_bs", "segment_bs"), "target": ("target_mask_bt",)}
        texts = {side: Text(given[side], *map(given.get, own)) for side, own in sides.items() if given.get(side) is not None}
        return mapped(getattr(self._model, method)(**texts), weights.to_numpy)

    def _tensor(self, array: np.ndarray | None) -> Any:
        return None if array is None else weights.from_numpy(array, self._device)


def _shared(tensor: torch.Tensor) -> np.ndarray:
    """Returns an array that shares a tensor's memory."""
    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
