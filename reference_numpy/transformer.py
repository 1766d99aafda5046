"""The whole Transformer: from token ids to logits and the training loss."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import checks, dropout, embedding, inputs, loss, mask, stacks
from .config import TransformerConfig
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

Tree = Mapping[str, Any]


def encode(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    keep: Tree | None = None,
    segment_bs: np.ndarray | None = None,
) -> np.ndarray:
    """`memory = encoder(dropout(norm(embedding(source) + position + segment)))`, `b s d`, with norm and segments by config.

    source: ids `b s`, or soft one-hot rows `b s v`. source_mask_bs: boolean, True = real token; without it, every id but the padding id.
    segment_bs: the segment of every token; without it, 0. keep: dropout masks by site (encoder.embedding_dropout and those of the layers);
    None evaluates. Raises ValueError on ids, masks and shapes that do not fit, and where the config has no encoder.
    """
    keep = (keep or {}).get("encoder", {})
    x_bsd, mask_bs = _encoder_inputs(parameters, config, source, source_mask_bs, keep, segment_bs)
    return stacks.encoder(parameters["encoder"], config, x_bsd, mask.padding_mask(mask_bs), keep)


def encode_vjp(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    keep: Tree | None = None,
    segment_bs: np.ndarray | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """Backwards through the encoder and the embedding; parameters, and source where it is soft."""
    keep = (keep or {}).get("encoder", {})
    x_bsd, mask_bs = _encoder_inputs(parameters, config, source, source_mask_bs, keep, segment_bs)
    inner = stacks.encoder_vjp(
        parameters["encoder"], config, x_bsd, mask.padding_mask(mask_bs), keep, cotangent=cotangent
    )
    embedded = _embed_vjp(
        parameters, config, "source", source, mask_bs, keep, segment_bs, cotangent=inner["x_bsd"]
    )
    return embedded | {"parameters": {**embedded["parameters"], "encoder": inner["parameters"]}}


def decode(
    parameters: Tree,
    config: TransformerConfig,
    target: np.ndarray,
    memory_bsd: np.ndarray | None = None,
    source_mask_bs: np.ndarray | None = None,
    target_mask_bt: np.ndarray | None = None,
    keep: Tree | None = None,
) -> np.ndarray:
    """`logits(decoder(dropout(embedding(target) + position), memory))`, `b t v`: row t scores the token after target t.

    target: ids `b t`, or soft one-hot rows `b t v`. memory_bsd: what the decoder attends to; None of a decoder alone.
    source_mask_bs hides the memory's padding. target_mask_bt: boolean, True = real token; without it, every id but the padding id.
    keep: dropout masks by site (decoder.embedding_dropout and those of the layers); None evaluates.
    Raises ValueError on ids, masks and shapes that do not fit, and where the config has no decoder.
    """
    x_btd, _, masks, keep = _decoder_inputs(
        parameters, config, target, memory_bsd, source_mask_bs, target_mask_bt, keep
    )
    x_btd = stacks.decoder(parameters["decoder"], config, x_btd, memory_bsd, *masks, keep)
    return embedding.logits(head(parameters, config), x_btd)


def decode_vjp(
    parameters: Tree,
    config: TransformerConfig,
    target: np.ndarray,
    memory_bsd: np.ndarray | None = None,
    source_mask_bs: np.ndarray | None = None,
    target_mask_bt: np.ndarray | None = None,
    keep: Tree | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """Backwards through the logits, the decoder and the embedding; parameters, memory_bsd where there is one, and target where it is soft.

    The gradient of a table that is also the logits' kernel is the sum of both uses.
    """
    x_btd, mask_bt, masks, keep = _decoder_inputs(
        parameters, config, target, memory_bsd, source_mask_bs, target_mask_bt, keep
    )
    y_btd = stacks.decoder(parameters["decoder"], config, x_btd, memory_bsd, *masks, keep)
    last = embedding.logits_vjp(head(parameters, config), y_btd, cotangent=cotangent)
    inner = stacks.decoder_vjp(
        parameters["decoder"], config, x_btd, memory_bsd, *masks, keep, cotangent=last["x_btd"]
    )
    embedded = _embed_vjp(
        parameters, config, "target", target, mask_bt, keep, cotangent=inner.pop("x_btd")
    )
    gradients = {**embedded.pop("parameters"), "decoder": inner.pop("parameters")}
    if config.tie_logits:
        gradients = add(
            gradients,
            {inputs.table(config, "target"): {"table": last["parameters"].pop("kernel").T}},
        )
    if last["parameters"]:
        gradients["logits"] = last["parameters"]
    return {"parameters": gradients, **inner, **embedded}


def transformer(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray | None,
    target: np.ndarray | None = None,
    source_mask_bs: np.ndarray | None = None,
    target_mask_bt: np.ndarray | None = None,
    keep: Tree | None = None,
    segment_bs: np.ndarray | None = None,
    skip_padding: bool = False,
) -> np.ndarray:
    """Logits `b t v` of the token after each target position, given the source: `decode(target, encode(source))`.

    source: ids `b s`, or soft one-hot rows `b s v`; None of a decoder alone, `decode(target)` (ALONE). target: None of an encoder alone,
    which gives what its head does: `classify`, `masked_language_logits`, or `encode` where it has none.
    skip_padding: the rows of logits where the target is padding are zeros, so that nobody has to compute them (PADDING).
    Arguments and errors as `encode` and `decode`; ValueError where an encoder alone has both heads. Source: Vaswani et al. 2017, figure 1.
    """
    checks.check_target_given(config.decoder_layers, target, target_mask_bt=target_mask_bt)
    checks.check_source_given(
        config.encoder_layers, source, source_mask_bs=source_mask_bs, segment_bs=segment_bs
    )
    if target is None:
        return _headed(config)(parameters, config, source, source_mask_bs, keep, segment_bs)
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
    config: TransformerConfig,
    source: np.ndarray | None,
    target: np.ndarray | None = None,
    source_mask_bs: np.ndarray | None = None,
    target_mask_bt: np.ndarray | None = None,
    keep: Tree | None = None,
    segment_bs: np.ndarray | None = None,
    skip_padding: bool = False,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """Backwards through `decode`, then through `encode`; parameters, source and target where they are soft.

    The gradient of a table that source and target share is the sum of its uses. With skip_padding no gradient comes from a row where the
    target is padding.
    """
    if target is None:
        return _headed_vjp(config)(
            parameters, config, source, source_mask_bs, keep, segment_bs, cotangent=cotangent
        )
    if skip_padding:
        cotangent = real_rows(cotangent, config, target, target_mask_bt)
    if source is None:
        return decode_vjp(
            parameters,
            config,
            target,
            target_mask_bt=target_mask_bt,
            keep=keep,
            cotangent=cotangent,
        )
    memory_bsd = encode(parameters, config, source, source_mask_bs, keep, segment_bs)
    mask_bs = (
        mask.token_mask(source, config.padding_id) if source_mask_bs is None else source_mask_bs
    )
    second = decode_vjp(
        parameters, config, target, memory_bsd, mask_bs, target_mask_bt, keep, cotangent=cotangent
    )
    first = encode_vjp(
        parameters,
        config,
        source,
        source_mask_bs,
        keep,
        segment_bs,
        cotangent=second.pop("memory_bsd"),
    )
    return first | second | {"parameters": add(first["parameters"], second["parameters"])}


def training_loss(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray | None,
    target: np.ndarray,
    smoothing: float = 0.0,
    total: int | None = None,
    keep: Tree | None = None,
) -> np.ndarray:
    """The cross-entropy of every token of the target after the first, given the source and the tokens before it: a scalar.

    source: ids `b s`, or soft one-hot rows `b s v`; None of a decoder alone.
    target: integer ids `b t`, with its start and end tokens; labels that are the padding id do not count. smoothing and total as
    `loss.cross_entropy`. keep: dropout masks by site, whose targets are one shorter than `target`. Raises ValueError as both do.
    """
    input_bt, label_bt = loss.teacher_forcing(target)
    logits_btv = transformer(parameters, config, source, input_bt, keep=keep)
    return loss.cross_entropy(
        logits_btv, label_bt, mask.token_mask(label_bt, config.padding_id), smoothing, total
    )


def training_loss_vjp(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray | None,
    target: np.ndarray,
    smoothing: float = 0.0,
    total: int | None = None,
    keep: Tree | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """Backwards through the loss and the whole model; parameters, and source where it is soft."""
    input_bt, label_bt = loss.teacher_forcing(target)
    logits_btv = transformer(parameters, config, source, input_bt, keep=keep)
    mask_bt = mask.token_mask(label_bt, config.padding_id)
    inner = loss.cross_entropy_vjp(
        logits_btv, label_bt, mask_bt, smoothing, total, cotangent=cotangent
    )
    return transformer_vjp(
        parameters, config, source, input_bt, keep=keep, cotangent=inner["logits_btv"]
    )


def _headed(config: TransformerConfig) -> Callable[..., Any]:
    """What an encoder alone computes when it is called: up to the head that it has."""
    from . import encoder_only  # which calls `encode`

    config.need_one_head()
    if config.classes:
        return encoder_only.classify
    return encoder_only.masked_language_logits if config.masked_language_head else encode


def _headed_vjp(config: TransformerConfig) -> Callable[..., Any]:
    """The same backwards."""
    from . import encoder_only

    config.need_one_head()
    if config.classes:
        return encoder_only.classify_vjp
    return encoder_only.masked_language_logits_vjp if config.masked_language_head else encode_vjp


def _embed(
    parameters: Tree, config: TransformerConfig, side: str, token: np.ndarray, mask_bt: np.ndarray | None, keep: Tree,
    segment_bt: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """What the first layer is given, and the mask of the tokens."""
    mask_bt, position_bt = inputs.masked_positions(config, side, token, mask_bt)
    x_btd = inputs.embed(parameters, config, side, token, position_bt, segment_bt)
    return dropout.dropout(x_btd, keep.get("embedding_dropout"), config.dropout_rate), mask_bt


def _embed_vjp(
    parameters: Tree, config: TransformerConfig, side: str, token: np.ndarray, mask_bt: np.ndarray, keep: Tree,
    segment_bt: np.ndarray | None = None, *, cotangent: np.ndarray,
) -> dict[str, Any]:  # fmt: skip
    g_btd = dropout.dropout_vjp(
        cotangent, keep.get("embedding_dropout"), config.dropout_rate, cotangent=cotangent
    )["x"]
    _, position_bt = inputs.masked_positions(config, side, token, mask_bt)
    return inputs.embed_vjp(
        parameters, config, side, token, position_bt, segment_bt, cotangent=g_btd
    )


def _encoder_inputs(
    parameters: Tree, config: TransformerConfig, source: np.ndarray, source_mask_bs: np.ndarray | None, keep: Tree,
    segment_bs: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The embedded source and the mask of its tokens."""
    config.need_encoder()
    return _embed(parameters, config, "source", source, source_mask_bs, keep, segment_bs)


def _decoder_inputs(
    parameters: Tree, config: TransformerConfig, target: np.ndarray, memory_bsd: np.ndarray | None,
    source_mask_bs: np.ndarray | None, target_mask_bt: np.ndarray | None, keep: Tree | None,
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray | None, np.ndarray | None], Tree]:  # fmt: skip
    """The embedded target and the mask of its tokens, the masks of self- and cross-attention, and the keep masks of the decoder's sites."""
    config.need_decoder()
    checks.check_memory(
        config.cross_attention,
        config.model_width,
        None if memory_bsd is None else memory_bsd.shape,
        source_mask_bs,
    )
    if memory_bsd is not None:
        checks.check_same_batch(source=memory_bsd.shape, target=target.shape)
    keep = (keep or {}).get("decoder", {})
    x_btd, mask_bt = _embed(parameters, config, "target", target, target_mask_bt, keep)
    if source_mask_bs is not None and memory_bsd is not None:
        checks.check_token_mask(
            "source mask", source_mask_bs.shape, str(source_mask_bs.dtype), memory_bsd.shape[:2]
        )
    cross_mask_bhts = None if source_mask_bs is None else mask.padding_mask(source_mask_bs)
    return x_btd, mask_bt, (mask.padding_mask(mask_bt), cross_mask_bhts), keep


def real_rows(
    x_btv: np.ndarray,
    config: TransformerConfig,
    target: np.ndarray,
    target_mask_bt: np.ndarray | None = None,
) -> np.ndarray:
    """The rows where the target is a real token; zeros where it is padding (PADDING)."""
    mask_bt = (
        mask.token_mask(target, config.padding_id) if target_mask_bt is None else target_mask_bt
    )
    return np.where(mask_bt[..., None], x_btv, x_btv.dtype.type(0))


def head(parameters: Tree, config: TransformerConfig) -> dict[str, np.ndarray]:
    """The parameters of the decoder's logits; tied, their kernel is the transposed table."""
    head = dict(parameters.get("logits", {}))
    return (
        head | {"kernel": parameters[inputs.table(config, "target")]["table"].T}
        if config.tie_logits
        else head
    )


def add(first: Tree, second: Tree) -> dict[str, Any]:
    """Both gradients, added where both have one."""
    flat, other = flatten(first), flatten(second)
    return nest(
        flat
        | {name: flat[name] + value if name in flat else value for name, value in other.items()}
    )
