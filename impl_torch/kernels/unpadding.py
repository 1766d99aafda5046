"""Unpadding: flat tokens of all rows without padding; only attention sees rows (PADDING).

Token-wise modules get `x` of shape `1 n d` and compute nothing for padding.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..mask import real_rows
from ..values import Heads

__all__ = ["PaddedMask", "Tokens", "in_rows", "pad", "unpad"]


class Tokens(NamedTuple):
    """Maps rows `b t` to n flat tokens, in the order of the rows, at least one per row.

    index_n: the position of each flat token in the flattened rows; None if all are flat. place_bt:
    the place of each position among the flat tokens; padding has that of another token of its row.
    mask_bt: True = has a flat token.
    """

    index_n: Tensor | None
    place_bt: Tensor | None
    mask_bt: Tensor

    @property
    def number(self) -> int:
        """Returns n."""
        return self.mask_bt.numel() if self.index_n is None else len(self.index_n)


class PaddedMask(NamedTuple):
    """Replaces `mask_bhts` in an unpadded run: a mask of rows, and the flat queries and keys."""

    mask_bhts: Tensor | None
    query: Tokens
    key: Tokens


def in_rows(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Decorates `attention(heads, mask, ...)`, which needs rows, to accept flat heads: if the mask
    is a `PaddedMask`, heads and output are flat.
    """

    @functools.wraps(attention)
    def call(module: Any, heads: Heads, mask: Any = None, *others: Any) -> Tensor:
        if not isinstance(mask, PaddedMask):
            return attention(module, heads, mask, *others)
        mask_bhts, query, key = mask
        query_bthk, key_bsgk, value_bsge, sink_h = heads
        rows = Heads(pad(query_bthk, query), pad(key_bsgk, key), pad(value_bsge, key), sink_h)
        return unpad(attention(module, rows, mask_bhts, *others), query)

    return call


def unpad(x_btd: Tensor, tokens: Tokens) -> Tensor:
    """Flattens rows to tokens: `1 n ...`. Its gradient is `pad`, 0 for padding."""
    if tokens.index_n is None:
        return x_btd.flatten(0, 1)[None]
    return _gathered(x_btd, tokens, to_rows=False)


def pad(x_1nd: Tensor, tokens: Tokens) -> Tensor:
    """Restores rows from flat tokens: `b t ...`. Its gradient is `unpad`.

    Padding repeats another token of its row, which nothing may read.
    """
    if tokens.index_n is None:
        return x_1nd[0].unflatten(0, tokens.mask_bt.shape)
    return _gathered(x_1nd, tokens, to_rows=True)


def _gather(x: Tensor, to_rows: bool, index_n: Tensor, place_bt: Tensor, mask_bt: Tensor) -> Tensor:
    if to_rows:
        return x[0].index_select(0, place_bt.flatten()).unflatten(0, mask_bt.shape)
    return x.flatten(0, 1).index_select(0, index_n)[None]


class _Gather(torch.autograd.Function):
    """Each direction is the gradient of the other; that of `index_select` adds rows one by one."""

    generate_vmap_rule = True
    forward = staticmethod(_gather)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.to_rows, *tokens = inputs
        ctx.save_for_backward(*tokens)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None, None, None]:
        tokens = Tokens(*ctx.saved_tensors)
        if ctx.to_rows:
            gradient = unpad(cotangents[0], tokens)
        else:
            gradient = real_rows(pad(cotangents[0], tokens), tokens.mask_bt)
        return gradient, None, None, None, None


def _gathered(x: Tensor, tokens: Tokens, to_rows: bool) -> Tensor:
    """Gathers rows or flat tokens, with a gradient if one may be needed."""
    differentiable = x.is_floating_point() and torch.is_grad_enabled()
    gather: Callable[..., Tensor] = _Gather.apply if differentiable else _gather
    return gather(x, to_rows, tokens.index_n, tokens.place_bt, tokens.mask_bt)
