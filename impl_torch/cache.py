"""Decoding in steps: the keys and values of what has been read are kept, so that a step computes its own tokens only."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_numpy import checks

from . import mask, positional_encoding, precision
from .attention import MultiHeadAttention
from .embedding import check_ids
from .fast.fused import changed, pack
from .layers import DecoderLayer
from .transformer import Decoder, Transformer

__all__ = ["decode_in_steps", "decode_step", "reorder", "start_cache"]

# read: how many tokens have been read. packed: whether a graph has the kernels as constants. source_bias_bhts: 0 for a real token, -inf for
# padding. target_bias_bwsw: of every copy of a row, which copy's token at each position is its own past: 0; others and padding are -inf.
# leading_b: padding before the first real token. position_td: the encoding of every position. layers: the keys and values of each, of
# both attentions.
Cache = Mapping[str, Any]
Step = Callable[..., tuple[Tensor, Cache]]


def start_cache(model: Transformer, memory_bsd: Tensor, source_mask_bs: Tensor | None = None, *, length: int, copies: int = 1) -> Cache:
    """Room for `length` tokens, which steps write into in place.

    copies: so many neighbouring rows of the target share a row of the memory, and can change places without a copy of keys and values.
    Raises ValueError on a model in training, too, and where a part that steps do not call as a whole has a hook or is of a kind of its own.
    """
    model.config.need_decoder()
    _check_steps(model)
    if model.training:
        raise ValueError("decoding in steps needs a model in evaluation; got one in training")
    config = model.config
    checks.check_features("memory", memory_bsd.shape, config.model_width)
    if source_mask_bs is not None:
        checks.check_token_mask("source mask", source_mask_bs.shape, precision.name(source_mask_bs.dtype), memory_bsd.shape[:2])
    rows, device, stack = len(memory_bsd) * copies, memory_bsd.device, _layers(model)
    sizes = config.key_size, config.value_size
    return {
        "read": 0,
        "packed": pack(model, rows),
        "source_bias_bhts": None if source_mask_bs is None else _bias(source_mask_bs, memory_bsd.dtype)[:, None, None],
        "target_bias_bwsw": memory_bsd.new_empty(len(memory_bsd), copies, length, copies),
        "leading_b": torch.zeros(rows, dtype=torch.int64, device=device),
        "position_td": positional_encoding.positional_encoding(torch.arange(length, device=device), config.model_width, memory_bsd.dtype),
        "layers": [
            {
                "self_attention": _fixed(
                    memory_bsd.new_empty(len(memory_bsd), length, copies, config.key_value_heads, size) for size in sizes
                ),
                "cross_attention": _fixed(layer.cross_attention.keys_and_values(memory_bsd)),
            }
            for layer in stack
        ],
    }


def decode_step(
    model: Transformer, target: Tensor, cache: Cache, target_mask_bt: Tensor | None = None, step: Step | None = None
) -> tuple[Tensor, Cache]:
    """The cache that is given and the one that is returned share their tensors. step: a graph of `read_on`, where there is one."""
    length = cache["position_td"].shape[0]
    checks.check_same_batch(cache=cache["leading_b"].shape, target=target.shape)
    check_ids((target, model.config.target_vocabulary))
    if target_mask_bt is not None:
        checks.check_token_mask("target mask", target_mask_bt.shape, precision.name(target_mask_bt.dtype), target.shape[:2])
    if cache["read"] + target.shape[1] > length:
        raise ValueError(f"the cache has room for {length} tokens; got {cache['read'] + target.shape[1]}")
    return (step or read_on)(model, target, cache, target_mask_bt)


def read_on(
    model: Transformer, target: Tensor, cache: Cache, target_mask_bt: Tensor | None = None, last: bool = False
) -> tuple[Tensor, Cache]:
    """`decode_step` on what has been checked. last: the logits after the last token alone."""
    read, end = cache["read"], cache["read"] + target.shape[1]
    mask_bt = mask.token_mask(target, model.config.padding_id) if target_mask_bt is None else target_mask_bt
    leading_b = torch.where(cache["leading_b"] == read, read + (mask_bt.cumsum(dim=1) == 0).sum(dim=1), cache["leading_b"])
    position_bt = (torch.arange(read, end, device=target.device) - leading_b[:, None]).clamp(min=0)
    x_btd = model.target_embedding(target, checked=True) + F.embedding(position_bt, cache["position_td"])
    bias_bhts = _self_bias(cache, mask_bt)
    x_btd = x_btd.reshape(bias_bhts.shape[0], bias_bhts.shape[2], x_btd.shape[2])
    for layer, layer_cache in zip(_layers(model), cache["layers"], strict=True):
        x_btd = layer.step(x_btd, layer_cache, read, bias_bhts, cache["source_bias_bhts"])
    x_btd = x_btd.reshape(*target.shape[:2], x_btd.shape[2])
    x_btd = model.decoder.final_norm(x_btd[:, -1:] if last else x_btd)
    return model.logits(x_btd), {**cache, "read": end, "leading_b": leading_b}


def decode_in_steps(
    model: Transformer,
    target: Tensor,
    memory_bsd: Tensor,
    splits: Sequence[int],
    source_mask_bs: Tensor | None = None,
    target_mask_bt: Tensor | None = None,
    step: Step | None = None,
) -> Tensor:
    check_ids((target, model.config.target_vocabulary))
    checks.check_splits(splits, target.shape)
    if target_mask_bt is not None:
        checks.check_token_mask("target mask", target_mask_bt.shape, precision.name(target_mask_bt.dtype), target.shape[:2])
    cache, logits = start_cache(model, memory_bsd, source_mask_bs, length=target.shape[1]), []
    for start, length in zip(accumulate(splits, initial=0), splits, strict=False):
        part = slice(start, start + length)
        part_mask_bt = None if target_mask_bt is None else target_mask_bt[:, part]
        logits_btv, cache = decode_step(model, target[:, part], cache, part_mask_bt, step)
        logits.append(logits_btv)
    return torch.cat(logits, dim=1)


def _self_bias(cache: Cache, mask_bt: Tensor) -> Tensor:
    """The bias of the next tokens, whose own part is written into the cache: each sees its copy's past, and of these tokens none later."""
    kept_bwsw, read, length = cache["target_bias_bwsw"], cache["read"], mask_bt.shape[1]
    (rows, copies), end = kept_bwsw.shape[:2], read + length
    own_ww = torch.eye(copies, dtype=torch.bool, device=mask_bt.device)[:, None]
    kept_bwsw[:, :, read:end] = _bias(mask_bt.unflatten(0, (rows, copies))[..., None] & own_ww, kept_bwsw.dtype)
    bias_bwtsw = kept_bwsw[:, :, None, :end].expand(-1, -1, length, -1, -1)
    if length > 1:
        bias_bwtsw = torch.where(mask.causal_mask(length, end, mask_bt.device)[0, 0, :, :, None], bias_bwtsw, -torch.inf)
    return bias_bwtsw.flatten(3).flatten(1, 2)[:, None]


def reorder(cache: Cache, row_b: Tensor) -> Cache:
    """Copies of a row change places among themselves alone, which leaves their keys and values where they are."""
    rows, copies = cache["target_bias_bwsw"].shape[:2]
    bias_bhts, layers = cache["source_bias_bhts"], cache["layers"]
    if copies == 1:
        bias_bhts = None if bias_bhts is None else bias_bhts[row_b]
        layers = [{name: _fixed(kept[row_b] for kept in pair) for name, pair in layer.items()} for layer in layers]
    return {
        **cache,
        "source_bias_bhts": bias_bhts,
        "target_bias_bwsw": cache["target_bias_bwsw"].flatten(0, 1)[row_b].unflatten(0, (rows, copies)),
        "leading_b": cache["leading_b"][row_b],
        "layers": layers,
    }


def _check_steps(model: Transformer) -> None:
    """Raises ValueError where a step would leave out what `forward` does: it calls these modules by other methods than that."""
    whole: list[tuple[str, Any, Any]] = [("model", model, Transformer), ("decoder", model.decoder, Decoder)]
    for index, layer in enumerate(_layers(model)):
        whole.append((f"decoder.layers.{index}", layer, DecoderLayer))
        whole += [(f"decoder.layers.{index}.{name}", getattr(layer, name), MultiHeadAttention) for name in _ATTENTIONS]
    for name, module, kind in whole:
        if not isinstance(module, kind) or type(module).forward is not kind.forward:
            raise ValueError(f"decoding in steps needs {name} to be a {kind.__name__} with its own forward; got {type(module).__name__}")
        if changed(module):
            raise ValueError(f"decoding in steps calls no forward of {name}, which must have no hooks and no forward of its own")


_ATTENTIONS = ("self_attention", "cross_attention")


def _layers(model: Transformer) -> Any:
    return model.decoder.layers


def _fixed(pair: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Keys and values, of which a graph takes lengths as variables, but not copies, heads and their size."""
    key_bsgk, value_bsge = pair
    for kept in (key_bsgk, value_bsge):
        torch._dynamo.mark_static(kept, [*range(2, kept.ndim)])
    return key_bsgk, value_bsge


def _bias(mask_bs: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a key may be attended to, -inf where not: added to logits, for every head and layer."""
    return torch.zeros(mask_bs.shape, dtype=dtype, device=mask_bs.device).masked_fill_(~mask_bs, -torch.inf)
