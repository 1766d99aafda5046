"""Runs the JAX port as a `models.Model`, with one program per set of shapes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from impl_jax import framework, weights
from impl_jax.programs import static_cache
from impl_jax.programs.compiled import compiled
from impl_jax.programs.fused import fused
from impl_jax.transformer import Transformer
from impl_jax.values import Text
from reference_numpy import TransformerConfig

from ...common.backends import transformer
from .models import METHODS, Model, rounded


class BackendModel(Model):
    """`models.Model` in JAX. Raises ValueError on a device that JAX lacks.

    A float64 model enables jax_enable_x64 by itself.
    """

    def __init__(self, config: TransformerConfig, parameters: Mapping[str, np.ndarray], dtype: np.dtype, device: str, int8: bool) -> None:
        self.config = config
        self._context = partial(framework.device_context, device, str(dtype))
        with self._context():
            self._model = transformer("jax", config, rounded(parameters, dtype))
            self._model.eval()
            self._decoding: Any = fused(self._model, "int8" if int8 else None) if config.decoder_layers else None
        self._methods = {name: compiled(getattr(self._model, name)) for name in METHODS}

    def start(self, rows: int, length: int, source: tuple[np.ndarray, np.ndarray] | None = None) -> Any:
        with self._context():
            if source is None:
                return _start(self._decoding, None, batch=rows, length=length)
            source_bs, mask_bs = map(weights.from_numpy, source)
            memory = (self._methods["encode"](Text(source_bs, mask_bs)), mask_bs)
            memory_bsd, mask_bs = (jnp.repeat(array, rows // len(source_bs), axis=0) for array in memory)
            return _start(self._decoding, memory_bsd, mask_bs, length=length)

    def read(self, token_bt: np.ndarray, mask_bt: np.ndarray, cache_: Any) -> tuple[np.ndarray, Any]:
        with self._context():
            logits_bv, cache_ = _step(self._decoding, weights.from_numpy(token_bt), cache_, weights.from_numpy(mask_bt))
            return weights.to_numpy(logits_bv), cache_

    def reorder(self, cache_: Any, row_b: np.ndarray) -> Any:
        with self._context():
            return _reorder(cache_, weights.from_numpy(row_b))

    def run(self, method: str, **inputs: np.ndarray | None) -> Any:
        with self._context():
            given = {name: weights.from_numpy(array) for name, array in inputs.items() if array is not None}
            texts = {"source": _text(given, "source", "bs"), "target": _text(given, "target", "bt")}
            found = self._methods[method](**{side: text for side, text in texts.items() if text is not None})
            return jax.tree.map(weights.to_numpy, found)


def _text(given: Mapping[str, jax.Array], side: str, axes: str) -> Text | None:
    """Returns one side of the inputs with its mask and segments; None if it is missing."""
    return Text(given[side], given.get(f"{side}_mask_{axes}"), given.get(f"segment_{axes}")) if side in given else None


def _last(model: Transformer, token_bt: jax.Array, cache_: Any, mask_bt: jax.Array) -> tuple[jax.Array, Any]:
    """Returns the logits after the last token, and the cache."""
    logits_btv, cache_ = static_cache.decode_step(model, token_bt, cache_, mask_bt)
    return logits_btv[:, -1], cache_


_start = jax.jit(static_cache.start_cache, static_argnames=("batch", "length"))  # creates new arrays, which a step may donate
_step = jax.jit(_last, donate_argnums=2)
_reorder = jax.jit(static_cache.reorder, donate_argnums=0)
