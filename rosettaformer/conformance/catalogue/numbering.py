"""Defects of which position a token has."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .defect import CONFIGURED, Defect, on_arguments, on_result
from .positional_encoding import ENCODING

__all__ = ["DEFECTS"]

Array = np.ndarray
Replaces = Mapping[str, Callable]


def _numbered(number: Callable[[Array], Array]) -> Replaces:
    """Positions that are a function of the mask `b t`, whose True = real token."""
    return {"positional_encoding.token_positions": lambda original, mask_bt, start="": number(mask_bt)}


def _count(mask_bt: Array) -> Array:
    return np.cumsum(mask_bt, axis=1)


def _first(mask_bt: Array) -> Array:
    """The place of the first real token `b 1`; the length where there is none."""
    return np.where(mask_bt.any(axis=1), mask_bt.argmax(axis=1), mask_bt.shape[1])[:, None]


def _from_first(first_b1: Array, mask_bt: Array) -> Array:
    return np.maximum(np.arange(mask_bt.shape[1]) - first_b1, 0)


def _renumbered(number: Callable[[Array], Array]) -> Replaces:
    """Positions that are a function of the right ones, `b t`."""
    return {"positional_encoding.token_positions": on_result(number)}


def _every(position_b1: Array, like: Array) -> Array:
    return np.broadcast_to(position_b1, like.shape)


def _divided(divisor: Callable[[int], float]) -> Replaces:
    """Sinusoids of positions that are divided by a function of the length t."""
    return {ENCODING: on_arguments(position_bt=lambda position_bt: position_bt / divisor(position_bt.shape[1]))}


_POSITIONS: dict[str, Any] = {
    "torch": "position = torch.arange(x.size(1), device=x.device)  # axis 1 of a batch-first x; x = x + encoding[position]",
    "tf": "position = tf.range(tf.shape(x)[1]); x = x + tf.gather(encoding, position)",
    "jax": "position = jnp.arange(x.shape[1]); x = x + encoding[position]",
}

_FIRST: dict[str, Any] = {
    "torch": "position = (torch.arange(t) - mask.int().argmax(1, keepdim=True)).clamp(min=0)  # mask: True = real token",
    "tf": "position = tf.maximum(tf.range(t) - tf.argmax(tf.cast(mask, tf.int32), 1, tf.int32)[:, None], 0)",
    "jax": "position = jnp.maximum(jnp.arange(t) - mask.argmax(axis=1)[:, None], 0)",
}
DEFECTS = (
    Defect(
        id="PE5",
        title="positions counted along the batch",
        what="Row b of the batch gets the encoding of position b, at every time step: the table is sliced by axis 0 of a batch-first "
        "input.",
        shows="Every token of a row has the same position. A batch and a length that differ show it.",
        **_POSITIONS,
        evidence="semillero",
        replaces={ENCODING: on_arguments(position_bt=lambda position_bt: np.indices(position_bt.shape)[0])},
    ),
    Defect(
        id="PE9",
        title="positions are offset by 2",
        what="`PE(p + 2)`: the offset `padding_id + 1` of fairseq's tables is applied where positions count from 0 (or lost where they do "
        "not).",
        shows="Every position carries the encoding of the one two later. Any position shows it.",
        torch="x = x + encoding[:, : x.size(1)]  # no + padding_idx + 1",
        tf="x = x + encoding[:, : tf.shape(x)[1]]  # no + padding_id + 1",
        jax="x = x + encoding[:, : x.shape[1]]  # no + padding_id + 1",
        evidence="transformers#19240, fairseq#1187",
        replaces={ENCODING: on_arguments(position_bt=lambda position_bt: position_bt + 2)},
    ),
    Defect(
        id="PE10",
        title="the whole table is added, not sliced to the length",
        what="The encoding has as many positions as the table has rows (50 here), not as many as the input.",
        shows="An error about shapes or an output of another length, unless the input is as long as the table. Any other length shows it.",
        torch="x = x + self.encoding[:, : x.size(1)]",
        tf="x = x + self.encoding[:, : tf.shape(x)[1]]",
        jax="x = x + encoding[:, : x.shape[1]]",
        evidence="keras_lab",
        replaces={ENCODING: on_arguments(position_bt=np.arange(50)[None])},
    ),
    Defect(
        id="PE11",
        title="left padding is counted as positions",
        what="`position = t`, the index in the row, instead of the count from the first real token.",
        shows="A row that is padded on its left gets other outputs than the same row without padding. Left padding shows it.",
        **_FIRST,
        elsewhere=CONFIGURED,
        evidence="transformers#7552, transformers#21080, TransformerLens#1609",
        replaces={"positional_encoding.token_positions": on_arguments(mask_bt=np.ones_like)},
    ),
    Defect(
        id="PE16",
        title="positions start at the first real token where they count from the row's beginning",
        component="token_positions",
        what="`position = cumsum(mask) - 1`, as `generate` numbers a prompt, in a model whose positions are `0, 1, 2, ...` whatever is "
        "padding.",
        shows="A row that is padded on its left gets other outputs. Left padding shows it; right padding does not.",
        torch="position = torch.arange(token.size(1), device=token.device).expand_as(token)",
        tf="position = tf.broadcast_to(tf.range(tf.shape(token)[1]), tf.shape(token))",
        jax="position = jnp.broadcast_to(jnp.arange(token.shape[1]), token.shape)",
        elsewhere=CONFIGURED,
        evidence="transformers#18478",
        replaces={"positional_encoding.token_positions": on_arguments(start="first_token")},
    ),
    Defect(
        id="PE27",
        title="every row has the positions of the batch's first row",
        component="token_positions",
        what="The padding on the left is counted in the first row, or in the rows before, and taken for all: written for one sentence.",
        shows="Rows that are padded otherwise than the first are numbered wrongly. Left padding that differs from row to row shows it.",
        **_FIRST,
        variants={
            "every row has the padding on the left of the row of the batch that has the most": _numbered(
                lambda mask_bt: _from_first(np.broadcast_to(_first(mask_bt).max(axis=0, initial=0), (len(mask_bt), 1)), mask_bt)
            ),
            "every row has at least the padding on the left of the rows before": _numbered(
                lambda mask_bt: _from_first(np.maximum.accumulate(_first(mask_bt), axis=0), mask_bt)
            ),
            "the padding on the left of the rows before is counted, too": _numbered(
                lambda mask_bt: _from_first(np.cumsum(_first(mask_bt), axis=0), mask_bt)
            ),
        },
        evidence="derived, not reported",
        replaces=_renumbered(lambda position_bt: _every(position_bt[:1], position_bt)),
    ),
    Defect(
        id="PE22",
        title="positions are the running count of the real tokens, from 0",
        component="token_positions",
        what="`position = max(cumsum(mask) - 1, 0)`: padding within or after a row has the position of the last real token before it.",
        shows="Real tokens agree unless padding stands between them. Padding after the first real token shows it.",
        **_FIRST,
        variants={
            "positions are the running count of the real tokens, from 0, and 1 at padding": _numbered(
                lambda mask_bt: np.where(mask_bt, _count(mask_bt) - 1, 1)
            ),
            "positions are the running count of the real tokens, from 0, and 0 at padding": _numbered(
                lambda mask_bt: np.where(mask_bt, _count(mask_bt) - 1, 0)
            ),
            "positions are the running count of the real tokens, from 1": _numbered(_count),
            "positions are moved back by the number of all padding tokens, those after the first real one among them": _numbered(
                lambda mask_bt: np.maximum(np.arange(mask_bt.shape[1]) - (~mask_bt).sum(axis=1, keepdims=True), 0)
            ),
            "positions are the running count of the real tokens, from 1, and 0 at padding": _numbered(
                lambda mask_bt: _count(mask_bt) * mask_bt
            ),
        },
        evidence="transformers' generation of GPT-2: position_ids.masked_fill_(attention_mask == 0, 1)",
        replaces=_numbered(lambda mask_bt: np.maximum(_count(mask_bt) - 1, 0)),
    ),
    Defect(
        id="PE23",
        title="positions are counted from the end",
        component="token_positions",
        what="The first token has the position of the last one, and the last one 0; or all tokens have one position.",
        shows="The order of the tokens is lost, or turned around. Two tokens show it.",
        **_POSITIONS,
        variants={
            "positions are counted from the last real token": _numbered(
                lambda mask_bt: np.maximum(mask_bt.sum(axis=1, keepdims=True) - np.maximum(_count(mask_bt), 1), 0)
            ),
            "every token has the position of the last one": _renumbered(
                lambda position_bt: _every(position_bt.max(axis=1, keepdims=True, initial=0), position_bt)
            ),
            "every token has position 0": _renumbered(np.zeros_like),
        },
        evidence="derived, not reported",
        replaces=_renumbered(lambda position_bt: position_bt[:, ::-1]),
    ),
    Defect(
        id="PE24",
        title="positions are divided by the length",
        what="`PE(p / t)`: positions run from 0 to 1, whatever the length of the row.",
        shows="All positions are nearly equal, and those of a token change with the length. Two positions show it.",
        **_POSITIONS,
        variants={
            "positions are divided by the length less 1": _divided(lambda length: max(length - 1, 1)),
            "positions are divided by 1000": _divided(lambda length: 1000.0),
            "positions are divided by 10000": _divided(lambda length: 10000.0),
        },
        evidence="derived, not reported",
        replaces=_divided(lambda length: max(length, 1)),
    ),
)
