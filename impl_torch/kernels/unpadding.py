"""Rows without their padding: the tokens of a batch lie flat, one after another, and only attention
sees rows (PADDING).

Modules that work token by token are given `x` of shape `1 n d` and compute nothing for padding.
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
    """Which positions of rows `b t` lie flat: n, in the order of the rows, at least one of each.

    index_n: the place of each flat token in the flattened rows; None if all positions lie flat.
    place_bt: the place of each position among the flat tokens; padding has the place of another
    token of its row. mask_bt: True = lies flat.
    """

    index_n: Tensor | None
    place_bt: Tensor | None
    mask_bt: Tensor

    @property
    def number(self) -> int:
        """Returns n."""
        return self.mask_bt.numel() if self.index_n is None else len(self.index_n)


class PaddedMask(NamedTuple):
    """The `mask_bhts` of an unpadded run: a mask of rows, and where flat tokens lie in them."""

    mask_bhts: Tensor | None
    query: Tokens
    key: Tokens


def in_rows(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A method `attention(heads, mask, ...)` that always sees rows. If the mask is a `PaddedMask`,
    heads and output lie flat.
    """

    @functools.wraps(attention)
    def call(module: Any, heads: Heads, mask: Any = None, *others: Any) -> Tensor:
        if not isinstance(mask, PaddedMask):
            return attention(module, heads, mask, *others)
        mask_bhts, query, key = mask
        query_bthk, key_bsgk, value_bsge = heads
        rows = Heads(pad(query_bthk, query), pad(key_bsgk, key), pad(value_bsge, key))
        return unpad(attention(module, rows, mask_bhts, *others), query)

    return call


def unpad(x_btd: Tensor, tokens: Tokens) -> Tensor:
    """Takes the tokens out of their rows: `1 n ...`. Its gradient is `pad`, 0 for padding."""
    if tokens.index_n is None:
        return x_btd.flatten(0, 1)[None]
    return _gathered(x_btd, tokens, to_rows=False)


def pad(x_1nd: Tensor, tokens: Tokens) -> Tensor:
    """Puts flat tokens back into rows: `b t ...`. Padding holds another token of its row, which
    nothing may read. The gradient is `unpad`.
    """
    if tokens.index_n is None:
        return x_1nd[0].unflatten(0, tokens.mask_bt.shape)
    return _gathered(x_1nd, tokens, to_rows=True)


def _gather(x: Tensor, to_rows: bool, index_n: Tensor, place_bt: Tensor, mask_bt: Tensor) -> Tensor:
    if to_rows:
        return x[0].index_select(0, place_bt.flatten()).unflatten(0, mask_bt.shape)
    return x.flatten(0, 1).index_select(0, index_n)[None]


class _Gather(torch.autograd.Function):
    """Each way is the gradient of the other; `index_select`'s would add up rows one by one."""

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
    """Gathers rows or flat tokens, with a gradient if one may be asked for."""
    differentiable = x.is_floating_point() and torch.is_grad_enabled()
    gather: Callable[..., Tensor] = _Gather.apply if differentiable else _gather
    return gather(x, to_rows, tokens.index_n, tokens.place_bt, tokens.mask_bt)
