"""Replicas of a module, one in each process: torch's `DistributedDataParallel`, which adds up the
gradients of all.
"""

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
    """Returns the function of a module, after whose backward pass gradients are sums over the
    processes, not means.

    The replicas must be equal. Their gradients travel in the same buckets at every step, in the
    first one too, so that a run that is resumed gives the same bits; a function may leave out
    parameters.
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
    """A function of a module as a module, since hooks of torch see nothing else called."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.function = module, function
        # torch looks for parameters that are left out, and warns where there are none
        self.left_out = nn.Parameter(next(module.parameters()).new_empty(0))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _sum(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work: dist.Work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
