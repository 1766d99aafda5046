"""The whole Transformer: from token ids to logits and the training loss."""

from collections.abc import Callable
from typing import Any

import numpy as np

from . import checks, dropout, embedding, inputs, loss, mask, stacks
from .arrays import Array, Gradients, Keep, Mask, Tree
from .config import TransformerConfig as Config
from .parameters import flatten, nest

__all__ = [
    "decode",
    "decode_vjp",
    "encode",
    "encode_vjp",
    "training_loss",
    "training_loss_vjp",
    "transformer",
    "transformer_vjp",
]


def encode(
    parameters: Tree,
    config: Config,
    source: Array,
    source_mask_bs: Mask = None,
    keep: Keep = None,
    segment_bs: Array | None = None,
) -> Array:
    """`memory = encoder(dropout(norm(embedding(source) + position + segment)))`, `b s d`.

    source: ids `b s`, or soft one-hot rows `b s v`. source_mask_bs: boolean, True = real token;
    without it, every id but the padding id. segment_bs: the segment of every token; without it, 0.
    keep: dropout masks by site (encoder.embedding_dropout and those of the layers); None evaluates.
    Norm and segments are there by config. Raises ValueError on ids, masks and shapes that do not
    fit, and if the config has no encoder.
    """
    config.need_encoder()
    keep = dropout.part(keep, "encoder")
    given = source, source_mask_bs, keep, segment_bs
    x_bsd, mask_bs, position_bs = _embed(parameters, config, "source", *given)
    rest = mask.padding_mask(mask_bs), keep, position_bs
    return stacks.encoder(parameters["encoder"], config, x_bsd, *rest)


def encode_vjp(
    parameters: Tree,
    config: Config,
    source: Array,
    source_mask_bs: Mask = None,
    keep: Keep = None,
    segment_bs: Array | None = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Backwards through the encoder and the embedding; parameters, and source where it is soft."""
    config.need_encoder()
    keep = dropout.part(keep, "encoder")
    given = source, source_mask_bs, keep, segment_bs
    x_bsd, mask_bs, position_bs = _embed(parameters, config, "source", *given)
    rest = mask.padding_mask(mask_bs), keep, position_bs
    inner = stacks.encoder_vjp(parameters["encoder"], config, x_bsd, *rest, cotangent=cotangent)
    embedded = _embed_vjp(
        parameters, config, "source", source, mask_bs, keep, segment_bs, cotangent=inner["x_bsd"]
    )
    return embedded | {"parameters": {**embedded["parameters"], "encoder": inner["parameters"]}}


def decode(
    parameters: Tree,
    config: Config,
    target: Array,
    memory_bsd: Array | None = None,
    source_mask_bs: Mask = None,
    target_mask_bt: Mask = None,
    keep: Keep = None,
) -> Array:
    """`logits(decoder(dropout(embedding(target) + position), memory))`, `b t v`.

    Row t scores the token after target t. target: ids `b t`, or soft one-hot rows `b t v`.
    memory_bsd: what the decoder attends to; None for a decoder-only model. source_mask_bs: the
    memory's real tokens. target_mask_bt: boolean, True = real token; without it, every id but the
    padding id. keep: dropout masks by site (decoder.embedding_dropout and those of the layers);
    None evaluates. Raises ValueError on ids, masks and shapes that do not fit, and if the config
    has no decoder.
    """
    x_btd, _, rest = _decoder_inputs(
        parameters, config, target, memory_bsd, source_mask_bs, target_mask_bt, keep
    )
    x_btd = stacks.decoder(parameters["decoder"], config, x_btd, memory_bsd, *rest)
    return logits(parameters, config, x_btd)


def decode_vjp(
    parameters: Tree,
    config: Config,
    target: Array,
    memory_bsd: Array | None = None,
    source_mask_bs: Mask = None,
    target_mask_bt: Mask = None,
    keep: Keep = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Backwards through the logits, the decoder and the embedding.

    Returns parameters, memory_bsd if there is a memory, and target where it is soft. The gradient
    of a table that is also the logits' kernel is the sum of both uses.
    """
    x_btd, mask_bt, rest = _decoder_inputs(
        parameters, config, target, memory_bsd, source_mask_bs, target_mask_bt, keep
    )
    stack = parameters["decoder"], config, x_btd, memory_bsd, *rest
    y_btd, of_logits = stacks.decoder(*stack), (config.logit_scale, config.logit_cap)
    last = embedding.logits_vjp(head(parameters, config), y_btd, *of_logits, cotangent=cotangent)
    inner = stacks.decoder_vjp(*stack, cotangent=last["x_btd"])
    embedded = _embed_vjp(
        parameters,
        config,
        "target",
        target,
        mask_bt,
        dropout.part(keep, "decoder"),
        cotangent=inner["x_btd"],
    )
    gradients, own = (
        {**embedded["parameters"], "decoder": inner["parameters"]},
        last["parameters"],
    )
    if config.tie_logits:
        table = {"table": own.pop("kernel").T}
        gradients = add(gradients, {inputs.table(config, "target"): table})
    if own:  # tied ones have only a bias, by config
        gradients["logits"] = own
    others = {
        name: x for name, x in {**inner, **embedded}.items() if name in ("memory_bsd", "target")
    }
    return {"parameters": gradients, **others}


def transformer(
    parameters: Tree,
    config: Config,
    source: Array | None,
    target: Array | None = None,
    source_mask_bs: Mask = None,
    target_mask_bt: Mask = None,
    keep: Keep = None,
    segment_bs: Array | None = None,
    skip_padding: bool = False,
) -> Array:
    """`decode(target, encode(source))`, `b t v`: the logits of the token after each target token.

    source: ids `b s`, or soft one-hot rows `b s v`; None for a decoder-only model (ALONE). target:
    None for an encoder-only model, which returns what its head does: `classify`,
    `masked_language_logits`, or `encode` if it has none. skip_padding: the logits are zero where
    the target is padding (PADDING). Arguments and errors match `encode` and `decode`; an
    encoder-only model with both heads also raises ValueError. Source: Vaswani et al. 2017,
    figure 1.
    """
    of_source = {"source_mask_bs": source_mask_bs, "segment_bs": segment_bs}
    checks.check_target_given(config.decoder_layers, target, target_mask_bt=target_mask_bt)
    checks.check_source_given(config.encoder_layers, source, **of_source)
    if target is None:
        return _encoder_output(config)(parameters, config, source, source_mask_bs, keep, segment_bs)
    memory_bsd = None
    if source is not None:
        checks.check_same_batch(source=source.shape, target=target.shape)
        memory_bsd = encode(parameters, config, source, source_mask_bs, keep, segment_bs)
        if source_mask_bs is None:
            source_mask_bs = mask.token_mask(source, config.padding_id)
    logits_btv = decode(
        parameters, config, target, memory_bsd, source_mask_bs, target_mask_bt, keep
    )
    return real_rows(logits_btv, config, target, target_mask_bt) if skip_padding else logits_btv


def transformer_vjp(
    parameters: Tree,
    config: Config,
    source: Array | None,
    target: Array | None = None,
    source_mask_bs: Mask = None,
    target_mask_bt: Mask = None,
    keep: Keep = None,
    segment_bs: Array | None = None,
    skip_padding: bool = False,
    *,
    cotangent: Array,
) -> Gradients:
    """Backwards through `decode`, then `encode`; parameters, source and target where they are soft.

    The gradient of a table that source and target share is the sum of its uses. With skip_padding
    the rows where the target is padding pass no gradient.
    """
    encoder: Any = parameters, config, source, source_mask_bs, keep, segment_bs
    if target is None:
        return _encoder_output_vjp(config)(*encoder, cotangent=cotangent)
    if skip_padding:
        cotangent = real_rows(cotangent, config, target, target_mask_bt)
    memory_bsd = None if source is None else encode(*encoder)
    if source is not None and source_mask_bs is None:
        source_mask_bs = mask.token_mask(source, config.padding_id)
    second = decode_vjp(
        parameters,
        config,
        target,
        memory_bsd,
        source_mask_bs,
        target_mask_bt,
        keep,
        cotangent=cotangent,
    )
    if source is None:
        return second
    first = encode_vjp(*encoder, cotangent=second.pop("memory_bsd"))
    return first | second | {"parameters": add(first["parameters"], second["parameters"])}


def training_loss(
    parameters: Tree,
    config: Config,
    source: Array | None,
    target: Array,
    smoothing: float = 0.0,
    total: int | None = None,
    keep: Keep = None,
) -> Array:
    """The cross-entropy of every target token after the first, given those before it: a scalar.

    source: ids `b s`, or soft one-hot rows `b s v`; None for a decoder-only model. target: integer
    ids `b t`, with start and end tokens; labels that are the padding id do not count. smoothing,
    total: as `loss.cross_entropy`. keep: dropout masks by site, whose targets are one shorter than
    `target`. Raises ValueError as `cross_entropy` and `transformer`.
    """
    input_bt, label_bt = loss.teacher_forcing(target)
    logits_btv = transformer(parameters, config, source, input_bt, keep=keep)
    mask_bt = mask.token_mask(label_bt, config.padding_id)
    return loss.cross_entropy(logits_btv, label_bt, mask_bt, smoothing, total)


def training_loss_vjp(
    parameters: Tree,
    config: Config,
    source: Array | None,
    target: Array,
    smoothing: float = 0.0,
    total: int | None = None,
    keep: Keep = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Backwards through the loss and the model; parameters, and source where it is soft."""
    input_bt, label_bt = loss.teacher_forcing(target)
    logits_btv = transformer(parameters, config, source, input_bt, keep=keep)
    mask_bt = mask.token_mask(label_bt, config.padding_id)
    inner = loss.cross_entropy_vjp(
        logits_btv, label_bt, mask_bt, smoothing, total, cotangent=cotangent
    )
    g_btv = inner["logits_btv"]
    return transformer_vjp(parameters, config, source, input_bt, keep=keep, cotangent=g_btv)


def _encoder_output(config: Config) -> Callable[..., Any]:
    """What an encoder-only model computes when it is called: up to the head that it has."""
    from . import encoder_only  # which calls `encode`

    config.need_one_head()
    if config.classes:
        return encoder_only.classify
    return encoder_only.masked_language_logits if config.masked_language_head else encode


def _encoder_output_vjp(config: Config) -> Callable[..., Any]:
    """The vjp of what `_encoder_output` returns."""
    from . import encoder_only

    config.need_one_head()
    if config.classes:
        return encoder_only.classify_vjp
    return encoder_only.masked_language_logits_vjp if config.masked_language_head else encode_vjp


def _embed(
    parameters: Tree,
    config: Config,
    side: str,
    token: Array,
    mask_bt: Mask,
    keep: Keep,
    segment_bt: Array | None = None,
) -> tuple[Array, Array, Array]:
    """The input of the first layer, and mask and positions of the tokens."""
    mask_bt, position_bt = inputs.masked_positions(config, side, token, mask_bt)
    x_btd = inputs.embed(parameters, config, side, token, position_bt, segment_bt)
    keep_btd = dropout.part(keep, "embedding_dropout")
    return dropout.dropout(x_btd, keep_btd, config.dropout_rate), mask_bt, position_bt


def _embed_vjp(
    parameters: Tree,
    config: Config,
    side: str,
    token: Array,
    mask_bt: Array,
    keep: Keep,
    segment_bt: Array | None = None,
    *,
    cotangent: Array,
) -> Gradients:
    dropped = dropout.part(keep, "embedding_dropout"), config.dropout_rate
    g_btd = dropout.dropout_vjp(cotangent, *dropped, cotangent=cotangent)["x"]
    _, position_bt = inputs.masked_positions(config, side, token, mask_bt)
    given = parameters, config, side, token, position_bt, segment_bt
    return inputs.embed_vjp(*given, cotangent=g_btd)


def _decoder_inputs(
    parameters: Tree,
    config: Config,
    target: Array,
    memory_bsd: Array | None,
    source_mask_bs: Mask,
    target_mask_bt: Mask,
    keep: Keep,
) -> tuple[Array, Array, tuple[Mask, Mask, Keep, Array]]:
    """The embedded target, its token mask, and what the decoder is given beside it and the memory:
    the masks of both attentions, its keep masks and the positions.
    """
    config.need_decoder()
    memory = None if memory_bsd is None else memory_bsd.shape
    checks.check_memory(config.cross_attention, config.model_width, memory, source_mask_bs)
    if memory is not None:
        checks.check_same_batch(source=memory, target=target.shape)
    keep = dropout.part(keep, "decoder")
    given = target, target_mask_bt, keep
    x_btd, mask_bt, position_bt = _embed(parameters, config, "target", *given)
    if source_mask_bs is not None and memory is not None:
        checks.check_token_mask(
            "source mask", source_mask_bs.shape, str(source_mask_bs.dtype), memory[:2]
        )
    cross_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
    return x_btd, mask_bt, (mask.padding_mask(mask_bt), cross_mask_bhts, keep, position_bt)


def real_rows(x_btv: Array, config: Config, target: Array, target_mask_bt: Mask = None) -> Array:
    """The rows at real tokens of the target, and zeros where it is padding (PADDING)."""
    if target_mask_bt is None:
        target_mask_bt = mask.token_mask(target, config.padding_id)
    return np.where(target_mask_bt[..., None], x_btv, x_btv.dtype.type(0))


def logits(parameters: Tree, config: Config, x_btd: Array) -> Array:
    """The logits of the decoder's output, with the scale and cap of the config."""
    given = head(parameters, config), x_btd
    if config.logit_scale == 1 and config.logit_cap is None:
        return embedding.logits(*given)
    return embedding.logits(*given, config.logit_scale, config.logit_cap)


def head(parameters: Tree, config: Config) -> Tree:
    """The parameters of the decoder's logits; tied, their kernel is the transposed table."""
    own = parameters.get("logits", {})
    if not config.tie_logits:
        return own
    return {**own, "kernel": parameters[inputs.table(config, "target")]["table"].T}


def add(first: Tree, second: Tree) -> Gradients:
    """Both gradients, added where both have one."""
    flat, other = flatten(first), flatten(second)
    for name, value in other.items():
        flat[name] = flat[name] + value if name in flat else value
    return nest(flat)
