"""The real tokens of a batch side by side in one row, so that no product is computed for padding (PADDING).

What works on each token alone is given `x` of shape `(1, n, d)` and notices nothing; attention alone sees the rows again.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import framework, mask

__all__ = [
    "PACK_FROM",
    "Packing",
    "Packings",
    "kept",
    "of_any_number",
    "of_forward",
    "of_loss",
    "pack",
    "packed_arguments",
    "rows",
    "unpack",
    "zero_padding",
]

Tree = Mapping[str, Any]

PACK_FROM = (
    1 << 16
)  # numbers of one layer's input that are saved, from which a forward pass gains more than the gathers take
LEAST_SHARE = 16  # of all positions at least one in so many must be saved
HINT = 1 << 10  # the number of tokens for which a graph's kernels are chosen


class Packing(NamedTuple):
    """Which positions of rows `b t` are packed: n of them, in the order of the rows, of every row at least one.

    index_n: the place of each in the flattened rows. place_bt: the place of each position among the packed tokens, or where it is none
    that of another token of its row. mask_bt: True = packed.
    """

    index_n: Tensor
    place_bt: Tensor
    mask_bt: Tensor

    def to(self, device: torch.device) -> "Packing":
        """On the device."""
        moved = Packing(*(x.to(device) for x in self))
        return moved._replace(index_n=of_any_number(moved.index_n, 0))


class Packings(NamedTuple):
    """Those of both sides; None: the rows are used as they are."""

    source: Packing | None = None
    target: Packing | None = None


def of_forward(
    model: Any,
    source: Tensor | None,
    target: Tensor | None = None,
    source_mask_bs: Tensor | None = None,
    target_mask_bt: Tensor | None = None,
    skip_padding: bool = False,
) -> Packings:
    """What `Transformer.forward` packs: the source, to whose padding nothing attends; with skip_padding the target, too.

    Of an encoder alone nothing: every row of what it gives is its answer.
    """
    if not model.config.decoder_layers:
        return Packings()
    real_bt = _real(model, target, target_mask_bt) if skip_padding else None
    return Packings(_packing(model, _real(model, source, source_mask_bs)), _packing(model, real_bt))


def of_loss(model: Any, source: Tensor | None, target: Tensor) -> Packings:
    """What `Transformer.training_loss` packs: the source, and every place of the target on which a label that counts depends.

    That is where the label counts, or the token is real and so may be attended to, and a label counts at the place or after it.
    """
    needed_bt = None
    if (counted_bt := _real(model, target[:, 1:])) is not None:
        later_bt = counted_bt.flip(1).cumsum(1).flip(1) > 0
        needed_bt = (
            counted_bt | mask.token_mask(target[:, :-1], model.config.padding_id)
        ) & later_bt
    return Packings(_packing(model, _real(model, source)), _packing(model, needed_bt))


def packed_arguments(module: Any) -> Callable[..., dict[str, Any]] | None:
    """What adds packings to the arguments of a model or of its `training_loss`, and packs the keep masks; None for anything else."""
    model = getattr(module, "__self__", module)
    if not hasattr(model, "pack_from") or (
        model is not module and module.__name__ != "training_loss"
    ):
        return None

    def prepare(**given: Any) -> dict[str, Any]:
        if given.get("packings") is not None:
            return given
        find = of_forward if model is module else of_loss
        names = (
            ("source", "target", "source_mask_bs", "target_mask_bt", "skip_padding")
            if model is module
            else ("source", "target")
        )
        packings = find(model, **{name: given[name] for name in names if name in given})
        if packings == Packings():
            return given
        return {**given, "packings": packings, "keep": kept(given.get("keep"), packings)}

    return prepare


def pack(x_btd: Tensor, packing: Packing | None) -> Tensor:
    """The packed positions of rows, `1 n ...`; the rows themselves without a packing. Its gradient is `unpack`, with zeros elsewhere."""
    if packing is None:
        return x_btd
    return _Pack.apply(x_btd, *packing) if _has_gradient(x_btd) else _pack(x_btd, *packing)


def unpack(x_1nd: Tensor, packing: Packing | None) -> Tensor:
    """Packed positions in their rows, `b t ...`; where nothing is packed, and nothing may look, stands another token of the row.

    Its gradient is `pack`.
    """
    if packing is None:
        return x_1nd
    return _Unpack.apply(x_1nd, *packing) if _has_gradient(x_1nd) else _unpack(x_1nd, *packing)


def zero_padding(logits_btv: Tensor, mask_bt: Tensor | None, packing: Packing | None) -> Tensor:
    """The logits, packed or not, in rows in which those of padding are zeros."""
    if packing is not None:
        logits_btv = unpack(logits_btv, packing)
    return logits_btv if mask_bt is None else _zeroed(logits_btv, mask_bt)


def kept(keep: Tree | None, packings: Packings) -> Tree | None:
    """The keep masks of all sites for packed tokens; those of attention weights are of rows."""
    if keep is None:
        return None
    return {
        **keep,
        "encoder": _kept(keep.get("encoder", {}), packings.source),
        "decoder": _kept(keep.get("decoder", {}), packings.target),
    }


def of_any_number(x: Tensor, axis: int) -> Tensor:
    """The tensor, for a graph that serves every number of tokens along the axis and does not depend on the first one that it meets."""
    torch._dynamo.mark_dynamic(x, axis, hint_override=HINT)
    return x


def _kept(keep: Tree, packing: Packing | None) -> Tree:
    if packing is None:
        return keep
    return {
        name: _kept(part, packing) if isinstance(part, Mapping) else _kept_at(name, part, packing)
        for name, part in keep.items()
    }


def _kept_at(name: str, keep: Tensor, packing: Packing) -> Tensor:
    return (
        keep
        if name == "weights_dropout"
        else of_any_number(pack(keep.expand(*packing.mask_bt.shape, -1), packing), 1)
    )


def rows(x_btd: Tensor, packing: Packing | None) -> torch.Size:
    """The shape of the rows that x is of."""
    return x_btd.shape if packing is None else packing.mask_bt.shape


class _Pack(torch.autograd.Function):
    """Both ways are a gather, where the gradient of `index_select` would add up rows one by one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *packing: Tensor) -> Tensor:
        return _pack(x, *packing)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        packing = Packing(*ctx.saved_tensors)
        return _zeroed(unpack(cotangent, packing), packing.mask_bt), None, None, None


class _Unpack(torch.autograd.Function):
    """What stands where nothing is packed passes no gradient: nothing looks at it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, *packing: Tensor) -> Tensor:
        return _unpack(x, *packing)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return pack(cotangent, Packing(*ctx.saved_tensors)), None, None, None


def _pack(x_btd: Tensor, index_n: Tensor, place_bt: Tensor, mask_bt: Tensor) -> Tensor:
    return x_btd.flatten(0, 1).index_select(0, index_n)[None]


def _unpack(x_1nd: Tensor, index_n: Tensor, place_bt: Tensor, mask_bt: Tensor) -> Tensor:
    return x_1nd[0].index_select(0, place_bt.flatten()).unflatten(0, mask_bt.shape)


def _zeroed(x_btd: Tensor, mask_bt: Tensor) -> Tensor:
    return x_btd.masked_fill(~mask_bt[(...,) + (None,) * (x_btd.ndim - 2)], 0)


def _has_gradient(x: Tensor) -> bool:
    return x.is_floating_point() and torch.is_grad_enabled()


def _real(model: Any, token: Tensor | None, mask_bt: Tensor | None = None) -> Tensor | None:
    """Which tokens are real; None where all are, or where a packing could not save enough whichever are."""
    config = model.config
    if token is None or token.shape[0] * token.shape[1] * config.model_width < model.pack_from:
        return None
    if mask_bt is not None or config.padding_id is None or token.is_floating_point():
        return mask_bt
    return mask.token_mask(token, config.padding_id)


def _packing(model: Any, mask_bt: Tensor | None) -> Packing | None:
    """The packing of these positions; None where it saves too little, and in a program that is traced, which has no values."""
    if mask_bt is None or not framework.has_values(mask_bt):
        return None
    saved, total = mask_bt.numel() - int(mask_bt.sum()), mask_bt.numel()
    if (
        saved * LEAST_SHARE < total
        or saved * model.config.model_width < model.pack_from
        or saved == 0
    ):
        return None
    if _needs_rows(model):
        return None
    first_b = mask_bt.long().argmax(dim=1)  # of a row without any, position 0
    mask_bt = mask_bt.scatter(1, first_b[:, None], True)
    start_b = mask_bt.sum(dim=1).cumsum(0).roll(1)
    start_b[0] = 0
    place_bt = start_b[:, None] + (mask_bt.cumsum(dim=1) - 1).clamp(min=0)
    index_n = mask_bt.flatten().nonzero()[:, 0]
    if len(index_n) == 1:  # which no graph takes for one of many numbers
        return None
    return Packing(index_n, place_bt, mask_bt).to(mask_bt.device)


def _needs_rows(model: nn.Module) -> bool:
    """Whether a module may look at the neighbours of a token: it has hooks or a `forward` of its own, or is not of a class that is known to
    work on each token alone."""
    from .. import dropout, embedding, feed_forward, layers, normalization, stacks, transformer
    from . import int8, projection

    known: set[Any] = {
        transformer.Transformer,
        stacks.Encoder,
        stacks.Decoder,
        layers.EncoderLayer,
        layers.DecoderLayer,
    }
    known |= {
        layers.MultiHeadAttention,
        feed_forward.FeedForward,
        normalization.LayerNorm,
        dropout.Dropout,
        embedding.Logits,
    }
    known |= {
        projection.FusedProjection,
        int8.Int8Projection,
        nn.Linear,
        nn.LayerNorm,
        nn.Dropout,
        nn.Identity,
        nn.ModuleList,
    }
    forwards = {kind.forward for kind in known}
    parts = [
        part
        for name in ("encoder", "decoder", "logits")
        if (part := getattr(model, name, None)) is not None
    ]
    given = [model, *(module for part in parts for module in part.modules())]
    return any(map(framework.is_changed, model.modules())) or any(
        type(module).forward not in forwards for module in given
    )
