"""The JAX port as a model for use on several devices: prompts are dealt out over data, and a row of the mesh shares the model."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from impl_jax import framework, weights
from impl_jax.programs import static_cache
from impl_jax.programs.sharding import Sharding, fetched, mapped
from impl_jax.transformer import Transformer
from reference_numpy import TransformerConfig
from reference_numpy import parameters as canonical
from reference_numpy.sharding import Mesh, repeated, spread

from .models import Model


class MeshModel(Model):
    """`models.Model` of this process's devices. Raises ValueError if they are fewer than the mesh has, or not of this process alone.

    Rows and groups of a cache lie where their keys and values are computed.
    """

    def __init__(
        self, config: TransformerConfig, parameters: Mapping[str, np.ndarray], dtype: np.dtype, device: str, int8: bool, mesh: Mesh
    ) -> None:
        self.config, own = config, spread(config, mesh)
        self._context = partial(framework.device_context, device, str(dtype))
        Sharding(own, mesh, device, component=None)  # which refuses the mesh as it was given
        if jax.process_count() > 1:
            raise ValueError(f"answers on a mesh need one process of JAX; got {jax.process_count()}")
        self._places = Sharding(own, replace(mesh, replicate=True), device)
        axes = canonical.axes(own)

        def value(name: str) -> np.ndarray:
            array = np.asarray(parameters[name]).astype(dtype, copy=False)
            return repeated(array, axes[name], own.key_value_heads)

        with self._context():
            shapes = nnx.eval_shape(lambda: Transformer(own, param_dtype=dtype, rngs=nnx.Rngs(0)))
            shapes.eval()
            self._graph, empty, *self._streams = nnx.split(shapes, nnx.Param, ...)
            self._state = self._places.state(empty, value)
        self._begin = jax.jit(self._started, static_argnums=(1, 2))
        self._step = jax.jit(self._last, donate_argnums=2)
        self._reorder = jax.jit(self._reordered, donate_argnums=0)

    def start(self, rows: int, length: int) -> Any:
        with self._context():
            return self._begin(self._state, rows + self._more(rows), length)

    def read(self, token_bt: np.ndarray, mask_bt: np.ndarray, cache_: Any) -> tuple[np.ndarray, Any]:
        rows, more = len(token_bt), [(0, self._more(len(token_bt))), (0, 0)]
        with self._context():
            given = (weights.from_numpy(np.pad(x, more)) for x in (token_bt, mask_bt))
            logits_bv, cache_ = self._step(self._state, next(given), cache_, next(given))
            return fetched(logits_bv)[:rows], cache_

    def reorder(self, cache_: Any, row_b: np.ndarray) -> Any:
        rows = len(row_b)
        with self._context():
            return self._reorder(cache_, weights.from_numpy(np.append(row_b, np.arange(rows, rows + self._more(rows)))))

    def run(self, method: str, **inputs: np.ndarray | None) -> Any:
        raise ValueError(f"on a mesh a model decodes only; got {method}")

    def _more(self, rows: int) -> int:
        """Returns how many rows of padding make the rows divide."""
        return -rows % self._places.parts

    # In programs:

    def _started(self, state: Any, rows: int, length: int) -> Any:
        return self._placed(static_cache.start_cache(self._model(state), None, batch=rows, length=length))

    def _last(self, state: Any, token_bt: jax.Array, cache_: Any, mask_bt: jax.Array) -> tuple[jax.Array, Any]:
        """Returns the logits after the last token, on every device, and the cache."""
        given = self._places.put(token_bt, "data"), self._placed(cache_), self._places.put(mask_bt, "data")
        logits_btv, cache_ = static_cache.decode_step(self._model(state), *given)
        return self._places.put(logits_btv[:, -1]), self._placed(cache_)

    def _reordered(self, cache_: Any, row_b: jax.Array) -> Any:
        return self._placed(static_cache.reorder(cache_, row_b))

    def _model(self, state: Any) -> Any:
        return nnx.merge(self._graph, mapped(self._places.used, state), *self._streams)

    def _placed(self, cache_: Any) -> Any:
        """Returns the cache with its rows over data, and its groups over model."""
        return jax.tree.map(lambda x: self._places.put(x, *("data", "model")[: x.ndim // 2]) if x.ndim else x, cache_)
