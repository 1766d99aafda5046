"""Rows without their padding: the tokens of a batch lie flat, one after another, and only attention
sees rows (PADDING).

Modules that work token by token are given `x` of shape `1 n d` and compute nothing for padding.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reference_numpy.scores import Scores

from ..mask import real_rows
from ..values import Heads

__all__ = ["PaddedMask", "Tokens", "in_rows", "pad", "unpad"]


class Tokens(NamedTuple):
    """Which positions of rows `b t` lie flat: n of them, in the order of the rows, at least one of
    each row.

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
    """Stands for `mask_bhts` in an unpadded run: the mask of the rows, and where the flat queries
    and keys lie in them.
    """

    mask_bhts: Tensor | None
    query: Tokens
    key: Tokens


def in_rows(
    attention: Callable[[Heads, Any, Tensor | None, Scores], Tensor],
    heads: Heads,
    mask_bhts: Tensor | PaddedMask | None,
    keep_bhts: Tensor | None,
    scores: Scores,
) -> Tensor:
    """`attention(heads, mask, keep, scores)`; with a `PaddedMask`, heads and output lie flat, and
    attention is computed in rows.
    """
    if not isinstance(mask_bhts, PaddedMask):
        return attention(heads, mask_bhts, keep_bhts, scores)
    rows_bhts, query, key = mask_bhts
    query_bthk, key_bsgk, value_bsge = heads
    rows = Heads(pad(query_bthk, query), pad(key_bsgk, key), pad(value_bsge, key))
    return unpad(attention(rows, rows_bhts, keep_bhts, scores), query)


def unpad(x_btd: Tensor, tokens: Tokens) -> Tensor:
    """Takes the tokens out of their rows: `1 n ...`. The gradient is `pad`, with zeros for
    padding.
    """
    index_n, place_bt, mask_bt = tokens
    if index_n is None or place_bt is None:
        return x_btd.flatten(0, 1)[None]
    gather: Any = _Unpad.apply if _has_gradient(x_btd) else _unpad
    return gather(x_btd, index_n, place_bt, mask_bt)


def pad(x_1nd: Tensor, tokens: Tokens) -> Tensor:
    """Puts flat tokens back into rows: `b t ...`. Padding holds another token of its row, which
    nothing may read.

    The gradient is `unpad`.
    """
    index_n, place_bt, mask_bt = tokens
    if index_n is None or place_bt is None:
        return x_1nd[0].unflatten(0, mask_bt.shape)
    gather: Any = _Pad.apply if _has_gradient(x_1nd) else _pad
    return gather(x_1nd, index_n, place_bt, mask_bt)


class _Unpad(torch.autograd.Function):
    """Both ways are a gather; the gradient of `index_select` would add up rows one by one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *tokens: Tensor) -> Tensor:
        return _unpad(x, *tokens)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        tokens = Tokens(*ctx.saved_tensors)
        return real_rows(pad(cotangents[0], tokens), tokens.mask_bt), None, None, None


class _Pad(torch.autograd.Function):
    """Padding passes no gradient: nothing reads it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *tokens: Tensor) -> Tensor:
        return _pad(x, *tokens)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return unpad(cotangents[0], Tokens(*ctx.saved_tensors)), None, None, None


def _unpad(x_btd: Tensor, index_n: Tensor, place_bt: Tensor, mask_bt: Tensor) -> Tensor:
    return x_btd.flatten(0, 1).index_select(0, index_n)[None]


def _pad(x_1nd: Tensor, index_n: Tensor, place_bt: Tensor, mask_bt: Tensor) -> Tensor:
    return x_1nd[0].index_select(0, place_bt.flatten()).unflatten(0, mask_bt.shape)


def _has_gradient(x: Tensor) -> bool:
    return x.is_floating_point() and torch.is_grad_enabled()
