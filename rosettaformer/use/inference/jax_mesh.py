"""Runs the JAX port on several devices; mesh rows share the prompts, devices of a row the model."""

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
from impl_jax.programs.split_experts import with_split_experts
from impl_jax.transformer import Transformer
from reference_numpy import TransformerConfig
from reference_numpy import parameters as canonical
from reference_numpy.sharding import Mesh, repeated, spread

from .models import Model


class MeshModel(Model):
    """`models.Model` on the devices of this process.

    Each part of a cache is on the device that computes its keys and values. Raises ValueError if
    the mesh needs more devices, or more than one process.
    """

    def __init__(
        self, config: TransformerConfig, parameters: Mapping[str, np.ndarray], dtype: np.dtype, device: str, int8: bool, mesh: Mesh
    ) -> None:
        self.config, own = config, spread(config, mesh)
        self._context = partial(framework.device_context, device, str(dtype))
        Sharding(own, mesh, device, component=None)  # validates the original mesh
        if jax.process_count() > 1:
            raise ValueError(f"generating on a mesh needs a single JAX process; got {jax.process_count()}")
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

    def start(self, rows: int, length: int, source: tuple[np.ndarray, np.ndarray] | None = None) -> Any:
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
        raise ValueError(f"a model on a mesh only generates text; got {method}")

    def _more(self, rows: int) -> int:
        """Returns the number of padding rows that make the rows divisible."""
        return -rows % self._places.parts

    # Traced functions:

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
        model = nnx.merge(self._graph, mapped(self._places.used, state), *self._streams)
        return with_split_experts(model, self._places)

    def _placed(self, cache_: Any) -> Any:
        """Returns the cache with rows split over data and groups over model."""
        return jax.tree.map(lambda x: self._places.put(x, *("data", "model")[: x.ndim // 2]) if x.ndim else x, cache_)
