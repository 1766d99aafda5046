"""Replicas of a module, one per process, by `DistributedDataParallel` with summed gradients."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["replicated"]


def replicated(
    module: nn.Module, function: Callable[..., Any], group: dist.ProcessGroup
) -> DistributedDataParallel:
    """Wraps a function of a module so that its backward pass sums gradients over the processes.

    The replicas must be equal. Gradients use the same buckets in every step, including the first,
    so that a resumed run gives the same bits; a function may leave parameters unused.
    """
    replicas = DistributedDataParallel(
        _Called(module, function),
        process_group=group,
        broadcast_buffers=False,
        init_sync=False,
        gradient_as_bucket_view=True,
        find_unused_parameters=True,
    )
    replicas.register_comm_hook(group, _sum)
    return replicas


class _Called(nn.Module):
    """A function of a module as a module, which torch's hooks require."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.function = module, function
        # torch searches for unused parameters, and warns if there are none
        self.left_out = nn.Parameter(next(module.parameters()).new_empty(0))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _sum(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work: dist.Work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
