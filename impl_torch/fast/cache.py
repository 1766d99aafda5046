"""A step of decoding: the keys and values of its tokens are written into the cache in place, and all copies of a row share one cache."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .. import mask
from ..attention import MultiHeadAttention
from ..framework import is_changed
from ..inputs import embed
from ..layers import DecoderLayer, residual_in, residual_out
from ..stacks import Decoder
from ..transformer import Transformer

__all__ = ["check_steps", "forward_step"]

Cache = Mapping[str, Any]
Pair = tuple[Tensor, ...]  # keys and values


def forward_step(
    model: Transformer,
    target: Tensor,
    cache: Cache,
    target_mask_bt: Tensor | None = None,
    last: bool = False,
) -> tuple[Tensor, Cache]:
    """`cache.decode_step` on what has been checked. last: the logits after the last token alone."""
    read, end = cache["read"], cache["read"] + target.shape[1]
    mask_bt = (
        mask.token_mask(target, model.config.padding_id)
        if target_mask_bt is None
        else target_mask_bt
    )
    leading_b, position_bt = cache["leading_b"], torch.arange(read, end, device=target.device)[None]
    if model.config.position_start == "first_token":
        leading_b = torch.where(
            leading_b == read, read + (mask_bt.cumsum(dim=1) == 0).sum(dim=1), leading_b
        )
        position_bt = (position_bt - leading_b[:, None]).clamp(min=0)
    x_btd: Any = embed(model, "target", target, position_bt, encoding_pd=cache["encoding_pd"])
    source_mask_bs = cache["source_mask_bs"]
    source_bias_bhts = (
        None if source_mask_bs is None else _bias(source_mask_bs[:, None, None], x_btd.dtype)
    )
    target_bias_bhts = _bias(_self_mask(cache, mask_bt), x_btd.dtype)
    x_btd = x_btd.reshape(target_bias_bhts.shape[0], target_bias_bhts.shape[2], x_btd.shape[2])
    for layer, layer_cache in zip(model.decoder.layers, cache["layers"], strict=True):
        x_btd = _layer_step(layer, x_btd, layer_cache, read, target_bias_bhts, source_bias_bhts)
    x_btd = x_btd.reshape(*target.shape[:2], x_btd.shape[2])
    x_btd = model.decoder.final_norm(x_btd[:, -1:] if last else x_btd)
    return model.logits(x_btd), {**cache, "read": end, "leading_b": leading_b}


def _layer_step(
    layer: DecoderLayer,
    x_btd: Tensor,
    cache: Mapping[str, Pair],
    read: int,
    self_bias_bhts: Tensor,
    cross_bias_bhts: Tensor | None,
) -> Tensor:
    """The layer on the next tokens of a target, of which `read` are read.

    x_btd: of every row the tokens of each of its w copies, one copy after the other. cache: self_attention, keys and values `b s w g k`
    of the copies of a whole target; cross_attention, those of the memory, `b s g k`.
    """
    attention = layer.self_attention
    query_bthk, *new = attention.project(residual_in(layer, "self_attention", x_btd))
    key_bsgk, value_bsge = (
        _written(*pair, read) for pair in zip(cache["self_attention"], new, strict=True)
    )
    y_btd: Any = attention.attend(query_bthk, key_bsgk, value_bsge, bias_bhts=self_bias_bhts)
    x_btd = residual_out(layer, "self_attention", x_btd, y_btd, {})

    if layer.crosses:
        attention = layer.cross_attention
        query_bthk = attention.queries(residual_in(layer, "cross_attention", x_btd))
        key_bsgk, value_bsge = cache["cross_attention"]
        y_btd = attention.attend(query_bthk, key_bsgk, value_bsge, bias_bhts=cross_bias_bhts)
        x_btd = residual_out(layer, "cross_attention", x_btd, y_btd, {})

    y_btd = layer.feed_forward(residual_in(layer, "feed_forward", x_btd))
    return residual_out(layer, "feed_forward", x_btd, y_btd, {})


def _written(kept_bswgk: Tensor, new_btgk: Tensor, read: int) -> Tensor:
    """What is read when the new keys or values have their place after the others: all copies of each token side by side, `b s g k`."""
    new_btwgk = new_btgk.unflatten(1, (kept_bswgk.shape[2], -1)).transpose(1, 2)
    end = read + new_btwgk.shape[1]
    kept_bswgk[:, read:end] = new_btwgk
    return kept_bswgk[:, :end].flatten(1, 2)


def _self_mask(cache: Cache, mask_bt: Tensor) -> Tensor:
    """The mask of the next tokens, which it writes into the cache: each sees its copy's past, and of these tokens none later."""
    kept_bwtw, read, length = cache["target_mask_bwtw"], cache["read"], mask_bt.shape[1]
    (rows, copies), end = kept_bwtw.shape[:2], read + length
    own_ww = torch.eye(copies, dtype=torch.bool, device=mask_bt.device)[:, None]
    kept_bwtw[:, :, read:end] = mask_bt.unflatten(0, (rows, copies))[..., None] & own_ww
    mask_bwtsw = kept_bwtw[:, :, None, :end].expand(-1, -1, length, -1, -1)
    if length > 1:
        mask_bwtsw = mask_bwtsw & mask.causal_mask(length, end, mask_bt.device)[0, 0, :, :, None]
    return mask_bwtsw.flatten(3).flatten(1, 2)[:, None]


def _bias(mask_bhts: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a key may be attended to, -inf where not: made once a step, where a kernel would make it of the mask in every layer."""
    return torch.where(mask_bhts, 0.0, -torch.inf).to(dtype)


def check_steps(model: Transformer) -> None:
    """Raises ValueError where a step would leave out what `forward` does: it calls these modules by other methods than that."""
    whole: list[tuple[str, Any, Any]] = [
        ("model", model, Transformer),
        ("decoder", model.decoder, Decoder),
    ]
    for index, layer in enumerate(model.decoder.layers):
        whole.append((f"decoder.layers.{index}", layer, DecoderLayer))
        attentions = (
            ("self_attention", "cross_attention")[: 1 + layer.crosses]
            if isinstance(layer, DecoderLayer)
            else ()
        )
        whole += [
            (f"decoder.layers.{index}.{name}", getattr(layer, name), MultiHeadAttention)
            for name in attentions
        ]
    for name, module, kind in whole:
        if not isinstance(module, kind) or type(module).forward is not kind.forward:
            raise ValueError(
                f"decoding in steps needs {name} to be a {kind.__name__} with its own forward; got {type(module).__name__}"
            )
        if is_changed(module):
            raise ValueError(
                f"decoding in steps calls no forward of {name}, which must have no hooks and no forward of its own"
            )
