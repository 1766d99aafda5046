"""Runs a model without the padding of its batch: finds the tokens worth keeping, flattens them.

Models with hooks, or with modules of other classes in their stacks, and traced programs keep their
rows.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, ParamSpec

import torch
from torch import Tensor, nn

from reference_numpy.parameters import flatten, nest

from .. import framework, loss, mask
from ..dropout import Keep, part
from ..inputs import embed, masked_positions, real_tokens
from ..kernels.unpadding import PaddedMask, Tokens, pad, unpad
from ..transformer import Transformer
from ..values import Text

__all__ = [
    "LEAST",
    "Sides",
    "driver",
    "find",
    "forward",
    "memory",
    "of_any_number",
    "real_logits",
    "training_loss",
    "unpad_keep",
    "unpadded",
]

Side = Text | Tensor
Given = ParamSpec("Given")

# Numbers of a layer's input that must be saved for a forward pass to gain more than the gathers
# cost.
LEAST = 1 << 16
LEAST_SHARE = 16  # at least one position in 16 must be saved
PACKAGE = __name__.partition(".")[0]
HINT = 1 << 10  # number of tokens that a graph's kernels are tuned for

# torch modules that work token by token; so do this package's modules in a stack, whose attention
# restores rows
OF_TORCH = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity, nn.ModuleList)
FORWARDS = {kind.forward for kind in OF_TORCH}


class Sides(NamedTuple):
    """The flat tokens of source and target; a decoder-only model has no source."""

    source: Tokens | None
    target: Tokens

    def to(self, device: torch.device) -> "Sides":
        """Moves the tokens to the device."""
        source = None if self.source is None else _moved(self.source, device)
        return Sides(source, _moved(self.target, device))

    def of_sites(self, names: Iterable[str]) -> dict[str, Tokens]:
        """Returns the flat tokens of these dropout sites, if their stack has any."""
        stacks = {"encoder": self.source, "decoder": self.target}
        found = {name: stacks.get(name.partition(".")[0]) for name in names}
        return {name: tokens for name, tokens in found.items() if tokens is not None}


def unpadded(function: Callable[Given, Tensor], least: int = LEAST) -> Callable[Given, Tensor]:
    """Wraps a model, its `training_loss` or its `real_logits` to skip padding (PADDING).

    A model skips the padding of its source, `real_logits` also that of the target; a loss skips
    every position that no label depends on. least: how many numbers of a layer's input must be
    padding. Gradients, keep masks and errors are unchanged.
    """
    if (pair := driver(function)) is None:
        raise ValueError(f"only a model or its training_loss can skip padding; got {function}")
    model, run = pair
    signature = inspect.signature(getattr(function, "forward", function))

    def call(*args: Given.args, **kwargs: Given.kwargs) -> Tensor:
        given = signature.bind(*args, **kwargs).arguments
        if (sides := find(function, least, **given)) is None:
            return function(*args, **kwargs)
        model.check_ids(given["source"], given["target"])
        return run(model, sides, **given | {"keep": unpad_keep(given.get("keep"), sides)})

    return call


def real_logits(
    model: Transformer, source: Side | None, target: Side, keep: Keep | None = None
) -> Tensor:
    """`real_rows(model(source, target))`: zeros in the target's padding rows.

    `partial(real_logits, model)` can be unpadded.
    """
    target = Text.of(target)
    mask_bt = real_tokens(model.config, target)
    return mask.real_rows(model(source, Text(target.ids, mask_bt), keep), mask_bt)


def driver(function: Callable[..., object]) -> tuple[Transformer, Callable[..., Any]] | None:
    """Returns the model and its run on flat tokens; None for other functions."""
    if isinstance(function, Transformer):
        return function, forward
    if isinstance(function, partial) and function.func is real_logits:
        return function.args[0], real_forward
    model = getattr(function, "__self__", None)
    if isinstance(model, Transformer) and function.__name__ == "training_loss":
        return model, training_loss
    return None


def forward(
    model: Transformer, sides: Sides, source: Side | None, target: Side, keep: Keep | None = None
) -> Tensor:
    """Computes `Transformer.forward`, `b t v`, from checked ids and keep masks of flat tokens."""
    return pad(_logits(model, sides, source, target, keep), sides.target)


def real_forward(
    model: Transformer, sides: Sides, source: Side | None, target: Side, keep: Keep | None = None
) -> Tensor:
    """Computes `real_logits` on flat tokens; arguments match `forward`."""
    logits_btv = forward(model, sides, source, target, keep)
    return mask.real_rows(logits_btv, real_tokens(model.config, Text.of(target)))


def training_loss(
    model: Transformer,
    sides: Sides,
    source: Side | None,
    target: Side,
    smoothing: float = 0.0,
    total: int | Tensor | None = None,
    keep: Keep | None = None,
) -> Tensor:
    """Computes `Transformer.training_loss` from checked ids and keep masks of flat tokens."""
    model.config.need_decoder()
    read, label = loss.shifted(Text.of(target))
    logits_1nv = _logits(model, sides, source, read, keep)
    own = None if label.mask is None else unpad(label.mask, sides.target)
    label = Text(unpad(label.ids, sides.target), own)
    mask_1n = real_tokens(model.config, label)
    return loss.unchecked(logits_1nv, label.ids, mask_1n, smoothing, total)


def memory(model: Transformer, source: Side, least: int = LEAST) -> Tensor:
    """Computes `encode` of checked ids; padding rows are undefined, so use the mask."""
    source = Text.of(source)
    tokens = _worth_it(model, _real(model, source, least), least)
    if tokens is None:
        return model._encode(source, None)[0]
    tokens = _moved(tokens, source.ids.device)
    return pad(_encode(model, tokens, source, None)[0], tokens)


def _logits(
    model: Transformer, sides: Sides, source: Side | None, target: Side, keep: Keep | None
) -> Tensor:
    """Returns the logits of flat target tokens, `1 n v`."""
    source_tokens, tokens = sides
    source, memory_1nd, cross_mask = Text.of(source), None, None
    if source is not None and source_tokens is not None:
        memory_1nd, mask_bs = _encode(model, source_tokens, source, keep)
        cross_mask = _padded(mask_bs, tokens, source_tokens)
    keep = part(keep, "decoder")
    x_1nd, mask_bt, position_1n = _input(model, "target", Text.of(target), tokens, keep)
    self_mask = _padded(mask_bt, tokens, tokens)
    x_1nd = model.decoder(x_1nd, memory_1nd, self_mask, cross_mask, keep, position_1n)
    return model.logits(x_1nd)


def _encode(
    model: Transformer, tokens: Tokens, source: Text, keep: Keep | None
) -> tuple[Tensor, Tensor | None]:
    """Returns the memory of flat tokens, `1 n d`, and the mask of the source's real tokens."""
    keep = part(keep, "encoder")
    x_1nd, mask_bs, position_1n = _input(model, "source", source, tokens, keep)
    return model.encoder(x_1nd, _padded(mask_bs, tokens, tokens), keep, position_1n), mask_bs


def _input(
    model: Transformer, side: str, text: Text, tokens: Tokens, keep: Keep | None
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Returns a stack's input, `1 n d`, the mask of its rows, and flat positions, `1 n`."""
    mask_bt, position_bt = masked_positions(model.config, side, text.ids, text.mask)
    x_1nd = unpad(embed(model, side, text.ids, position_bt, text.segment), tokens)
    stack = model.encoder if side == "source" else model.decoder
    x_1nd = stack.embedding_dropout(x_1nd, part(keep, "embedding_dropout"))
    if position_bt is None:
        position_t = torch.arange(text.ids.shape[1], device=text.ids.device)
        position_bt = position_t.expand(tokens.mask_bt.shape)
    return x_1nd, mask_bt, unpad(position_bt, tokens)


def _padded(mask_bs: Tensor | None, query: Tokens, key: Tokens) -> Any:
    """Returns the mask argument of an attention from flat queries to flat keys."""
    return PaddedMask(mask.padding_mask(mask_bs), query, key)


def find(
    function: Callable[..., object],
    least: int = LEAST,
    source: Side | None = None,
    target: Side | None = None,
    router_aux_weight: float = 0.0,
    router_z_weight: float = 0.0,
    **others: object,
) -> Sides | None:
    """Returns the flat tokens for a model, its `training_loss` or its `real_logits` on these texts.

    None: padding is not worth skipping, the loss has a loss of routers, the function is another
    one, or the arguments are invalid, which the function reports. others: irrelevant arguments.
    """
    if router_aux_weight or router_z_weight:
        return None
    if (pair := driver(function)) is None:
        return None
    model, run = pair
    source, target = Text.of(source), Text.of(target)
    if not model.config.decoder_layers:  # every output row of an encoder-only model matters
        return None
    if target is None or (source is None) == bool(model.config.encoder_layers):
        return None
    if target.ids.ndim < 2 or (source is not None and source.ids.ndim < 2):
        return None
    real_bs, real_bt = _real(model, source, least), None
    if run is training_loss:
        real_bt = _depended_on(model, target, least)
        target = Text(target.ids[:, :-1])
    elif run is real_forward:
        real_bt = _real(model, target, least)
    found = [_worth_it(model, real, least) for real in (real_bs, real_bt)]
    if found == [None, None]:
        return None
    source_tokens = None if source is None else found[0] or _all(source.ids)
    return Sides(source_tokens, found[1] or _all(target.ids)).to(target.ids.device)


def _depended_on(model: Transformer, target: Text, least: int) -> Tensor | None:
    """Returns the target positions that a counted label depends on; None: all.

    At these positions the label counts, or the token is real and thus visible, and a label counts
    there or later.
    """
    real_bt = _real(model, target, least)
    if real_bt is None:
        return None
    counted_bt = real_bt[:, 1:]
    later_bt = counted_bt.flip(1).cumsum(1).flip(1) > 0
    return (counted_bt | real_bt[:, :-1]) & later_bt


def _real(model: Transformer, text: Text | None, least: int) -> Tensor | None:
    """Returns which tokens are real; None: all, or too few to save enough."""
    if text is None or text.ids.shape[0] * text.ids.shape[1] * model.config.model_width < least:
        return None
    return real_tokens(model.config, text)


def _worth_it(model: Transformer, mask_bt: Tensor | None, least: int) -> Tokens | None:
    """Returns these positions as flat tokens; None in a trace, or if that saves too little."""
    if mask_bt is None or not framework.has_values(mask_bt):
        return None
    total = mask_bt.numel()
    saved = total - int(mask_bt.sum())
    if saved == 0 or saved * LEAST_SHARE < total or saved * model.config.model_width < least:
        return None
    if _needs_rows(model):
        return None
    first_b = mask_bt.long().argmax(dim=1)  # for rows without any, position 0
    mask_bt = mask_bt.scatter(1, first_b[:, None], True)
    start_b = mask_bt.sum(dim=1).cumsum(0).roll(1)
    start_b[0] = 0
    place_bt = start_b[:, None] + (mask_bt.cumsum(dim=1) - 1).clamp(min=0)
    index_n = mask_bt.flatten().nonzero()[:, 0]
    if len(index_n) == 1:  # graphs do not accept 1 as a variable size
        return None
    return Tokens(index_n, place_bt, mask_bt)


def _all(token: Tensor) -> Tokens:
    """Returns all positions as flat tokens."""
    return Tokens(None, None, torch.ones(token.shape[:2], dtype=torch.bool, device=token.device))


def _moved(tokens: Tokens, device: torch.device) -> Tokens:
    index_n, place_bt = (None if x is None else x.to(device) for x in tokens[:2])
    if index_n is not None:
        of_any_number(index_n, 0)
    return Tokens(index_n, place_bt, tokens.mask_bt.to(device))


def _needs_rows(model: Transformer) -> bool:
    """Whether a module may look at neighboring tokens: it has hooks or its own `forward`, or is of
    an unknown class.
    """
    names = ("encoder", "decoder", "logits")
    parts = [stack for name in names if (stack := getattr(model, name, None)) is not None]
    forwards = {type(module).forward for stack in parts for module in stack.modules()}
    unknown = {type(model).forward, *forwards} - FORWARDS
    return any(map(framework.is_changed, model.modules())) or not all(
        forward.__module__.partition(".")[0] == PACKAGE for forward in unknown
    )


def unpad_keep(keep: Keep | None, sides: Sides) -> Keep | None:
    """Flattens keep masks, except those of attention weights, which need rows."""
    masks: dict[str, Tensor] = flatten(keep or {})
    for site, tokens in sides.of_sites(masks).items():
        if not site.endswith("weights_dropout"):
            keep_1nd = unpad(masks[site].expand((*tokens.mask_bt.shape, -1)), tokens)
            masks[site] = keep_1nd if tokens.index_n is None else of_any_number(keep_1nd, 1)
    return nest(masks) or None


def of_any_number(x: Tensor, axis: int) -> Tensor:
    """Marks the tensor so that a graph serves every number of tokens along the axis."""
    framework.mark_dynamic(x, axis, HINT)
    return x
