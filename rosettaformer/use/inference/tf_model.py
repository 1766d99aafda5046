"""Runs the TensorFlow port as a `models.Model`, with one graph per set of shapes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from impl_tf import weights
from impl_tf.inputs import OF_SOURCE, OF_TARGET
from impl_tf.programs import static_cache
from impl_tf.programs.compiled import compiled
from impl_tf.programs.fused import fused
from impl_tf.values import Text
from reference_numpy import TransformerConfig

from ...common.backends import transformer
from ...common.modules import keras as modules
from .models import METHODS, Model, rounded


class BackendModel(Model):
    """`models.Model` in TensorFlow. Raises ValueError on a device that TensorFlow lacks.

    XLA compiles decoding steps, but not encoders, which see many shapes. int8: quantizes a
    decoder's projections.
    """

    def __init__(self, config: TransformerConfig, parameters: Mapping[str, np.ndarray], dtype: np.dtype, device: str, int8: bool) -> None:
        self.config, self._device = config, modules.device(device, ("cpu", "cuda"))
        with tf.device(self._device):
            self._model = transformer("tf", config, rounded(parameters, dtype))
            self._decoding: Any = fused(self._model, "int8" if int8 else None) if config.decoder_layers else None
        self._step = compiled(self._last)
        self._reorder = compiled(static_cache.reorder)
        heads = {name: partial(getattr(self._model, name), training=False) for name in METHODS if name != "states"}
        self._methods = {name: compiled(method, jit_compile=False) for name, method in {**heads, "states": self._model.states}.items()}

    def start(self, rows: int, length: int, source: tuple[np.ndarray, np.ndarray] | None = None) -> Any:
        with tf.device(self._device):
            if source is None:
                return static_cache.start_cache(self._decoding, None, batch=rows, length=length)
            source_bs, mask_bs = map(tf.constant, source)
            memory = (self._methods["encode"](Text(source_bs, mask_bs)), mask_bs)
            memory_bsd, mask_bs = (tf.repeat(array, rows // len(source_bs), axis=0) for array in memory)
            return static_cache.start_cache(self._decoding, memory_bsd, mask_bs, length=length)

    def read(self, token_bt: np.ndarray, mask_bt: np.ndarray, cache_: Any) -> tuple[np.ndarray, Any]:
        with tf.device(self._device):
            logits_bv, cache_ = self._step(tf.constant(token_bt), cache_, tf.constant(mask_bt))
        return weights.to_numpy(logits_bv), cache_

    def reorder(self, cache_: Any, row_b: np.ndarray) -> Any:
        with tf.device(self._device):
            return self._reorder(cache_, tf.constant(row_b))

    def run(self, method: str, **inputs: np.ndarray | None) -> Any:
        with tf.device(self._device):
            given = {name: tf.constant(array) for name, array in inputs.items() if array is not None}
            source = Text.of(*map(given.get, OF_SOURCE))
            target = {"target": Text.of(*map(given.get, OF_TARGET))} if method == "states" else {}
            found = self._methods[method](source, **target)
        return tf.nest.map_structure(weights.to_numpy, found)

    def _last(self, token_bt: tf.Tensor, cache_: Any, mask_bt: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the logits after the last token, and the cache."""
        logits_btv, cache_ = static_cache.decode_step(self._decoding, token_bt, cache_, mask_bt)
        return logits_btv[:, -1], cache_
