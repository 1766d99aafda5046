"""Runs the NumPy reference as a `models.Model`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, cache, encoder_only, states, transformer
from reference_numpy import parameters as canonical
from reference_numpy.values import Text

from .models import Model, rounded

SIDES = {"source": ("source_mask_bs", "segment_bs"), "target": ("target_mask_bt",)}


class BackendModel(Model):
    """`models.Model` in NumPy. Raises ValueError on devices other than cpu."""

    def __init__(self, config: TransformerConfig, parameters: Mapping[str, np.ndarray], dtype: np.dtype, device: str, int8: bool) -> None:
        if device != "cpu":
            raise ValueError(f"device must be cpu; got {device!r}")
        self.config, self._parameters = config, canonical.nest(rounded(parameters, dtype))

    def start(self, rows: int, length: int, source: tuple[np.ndarray, np.ndarray] | None = None) -> Any:
        if source is None:
            return cache.start_cache(self._parameters, self.config, None, batch=rows)
        memory_bsd = transformer.encode(self._parameters, self.config, Text(*source))
        memory_bsd, mask_bs = (array.repeat(rows // len(array), axis=0) for array in (memory_bsd, source[1]))
        return cache.start_cache(self._parameters, self.config, memory_bsd, mask_bs)

    def read(self, token_bt: np.ndarray, mask_bt: np.ndarray, cache_: Any) -> tuple[np.ndarray, Any]:
        logits_btv, cache_ = cache.decode_step(self._parameters, self.config, token_bt, cache_, mask_bt)
        return logits_btv[:, -1], cache_

    def reorder(self, cache_: Any, row_b: np.ndarray) -> Any:
        return cache.reorder(cache_, row_b)

    def run(self, method: str, **inputs: np.ndarray | None) -> Any:
        function = next(getattr(module, method) for module in (transformer, encoder_only, states) if hasattr(module, method))
        sides = {side: ids for side in SIDES if (ids := inputs.get(side)) is not None}
        given = {side: Text(ids, *map(inputs.get, SIDES[side])) for side, ids in sides.items()}
        return function(self._parameters, self.config, **given)
