"""Runs the PyTorch port on several processes.

The rows of the mesh share the prompts; the processes of one row share the model.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from impl_torch import weights
from impl_torch.programs import columns, static_cache
from impl_torch.programs.columns import Column
from impl_torch.programs.sharding import device_mesh
from reference_numpy import TransformerConfig
from reference_numpy.sharding import Mesh, chunks

from .torch_model import BackendModel


class MeshModel(BackendModel):
    """`models.Model` of which each process holds a part; all processes must make the same calls.

    Raises ValueError unless there is one process per device of the mesh.
    """

    def __init__(
        self, config: TransformerConfig, parameters: Mapping[str, np.ndarray], dtype: np.dtype, device: str, int8: bool, mesh: Mesh
    ) -> None:
        super().__init__(config, parameters, dtype, device, int8)
        if self._device.type == "cuda":
            self._device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(self._device)
        axes = device_mesh(mesh, self._device)
        self._data, (self._row, column) = mesh.data, divmod(dist.get_rank(), mesh.model)
        self._column = Column(column, mesh.model, axes.get_group("model"))
        self.speaks = dist.get_rank() == 0
        # Frequencies may depend on the longest prompt, possibly elsewhere: one more row is as long.
        self._longest = mesh.data > 1 and config.rotary_by_length

    def _empty(self) -> Any:
        return columns.empty(self.config, self._column)

    def _arrays(self) -> Iterable[tuple[str, np.ndarray]]:
        return columns.arrays(self.config, self._column, self._parameters.__getitem__)

    @cached_property
    def _decoding(self) -> Any:
        return columns.joined(super()._decoding, self._column)

    def start(self, rows: int, length: int, source: tuple[np.ndarray, np.ndarray] | None = None) -> Any:
        return super().start(rows + self._longest, length)

    @torch.inference_mode()
    def read(self, token_bt: np.ndarray, mask_bt: np.ndarray, cache_: Any) -> tuple[np.ndarray, Any]:
        rows, more = len(token_bt), [(0, int(self._longest)), (0, 0)]
        given = self._tensor(np.pad(token_bt, more)), cache_, self._tensor(np.pad(mask_bt, more, constant_values=True))
        step = partial(static_cache.forward_step, last=True)
        logits_b1v, cache_ = static_cache.decode_step(self._decoding, *given, step=step)
        return weights.to_numpy(logits_b1v[:rows, 0]), cache_

    def reorder(self, cache_: Any, row_b: np.ndarray) -> Any:
        return super().reorder(cache_, np.append(row_b, np.arange(len(row_b), len(row_b) + self._longest)))

    def shared(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yields the values that the first process reads. Raises its ValueError in all of them."""
        rest = iter(values)
        while True:
            sent: list[Any] = [_tried(lambda: next(rest, None)) if self.speaks else None]
            dist.broadcast_object_list(sent, src=0)
            value, problem = sent[0]
            if problem:
                raise ValueError(problem)
            if value is None:
                return
            yield value

    def dealt(self, count: int, search: Callable[[range], Iterator[Any]]) -> Iterator[Any]:
        """Yields all results in the first process only. Raises one's ValueError in all."""
        found, problem = list[Any](), ""
        try:
            for event in search(range(count)[chunks(count, self._data)[self._row]]):
                if self.speaks:
                    yield event
                elif self._column.number == 0:
                    found.append(event)
        except ValueError as error:
            problem = str(error)
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, (found, problem))
        if problems := [problem for _, problem in every if problem]:
            raise ValueError(problems[0])
        if self.speaks:
            yield from (event for found, _ in every for event in found)


def _tried(read: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return read(), ""
    except ValueError as error:
        return None, str(error)
