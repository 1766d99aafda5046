"""The whole Transformer: from token ids to logits and the training loss."""

from typing import Any

import numpy as np

from . import arithmetic, checks, dropout, embedding, heads, inputs, layers, loss, mask, stacks
from .arrays import Array, Gradients, Keep, Mask, Tree
from .config import TransformerConfig as Config
from .parameters import flatten, nest
from .values import Memory, Text

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


def transformer(
    parameters: Tree,
    config: Config,
    source: Text | Array | None,
    target: Text | Array | None = None,
    keep: Keep = None,
) -> Array:
    """`decode(target, encode(source))`, `b t v`: the logits of the token after each target token.

    source: None for a decoder-only model (ALONE). target: None for an encoder-only model, which
    returns the output of its head: `classify`, `masked_language_logits`, or `encode` without a
    head. Nothing attends to padding, so padding changes no other logits (PADDING). Arguments and
    errors match `encode` and `decode`; an encoder-only model with both heads also raises
    ValueError. Source: Vaswani et al. 2017, figure 1.
    """
    source, target = sides(config, source, target)
    if source is None:
        assert target is not None
        return decode(parameters, config, target, keep=keep)
    if target is None:
        return encoder_output(parameters, config, config.only_head, source, keep)
    memory_bsd = encode(parameters, config, source, keep)
    return decode(parameters, config, target, memory_bsd, inputs.real(config, source), keep)


def transformer_vjp(
    parameters: Tree,
    config: Config,
    source: Text | Array | None,
    target: Text | Array | None = None,
    keep: Keep = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Backward pass through `decode`, then `encode`. Returns parameters and soft source and target.

    The gradient of a table shared by source and target is the sum of its uses.
    """
    source, target = sides(config, source, target)
    if source is None:
        assert target is not None
        return decode_vjp(parameters, config, target, keep=keep, cotangent=cotangent)
    if target is None:
        given = config.only_head, source, keep
        return encoder_output_vjp(parameters, config, *given, cotangent=cotangent)
    of_memory = encode(parameters, config, source, keep), inputs.real(config, source)
    second = decode_vjp(parameters, config, target, *of_memory, keep, cotangent=cotangent)
    first = encode_vjp(parameters, config, source, keep, cotangent=second.pop("memory_bsd"))
    return first | second | {"parameters": add(first["parameters"], second["parameters"])}


def encode(parameters: Tree, config: Config, source: Text | Array, keep: Keep = None) -> Array:
    """`memory = encoder(dropout(norm(embedding(source) + position + segment)))`, `b s d`.

    source: ids `b s`, or soft one-hot rows `b s v`; a Text also has a mask and segments. keep:
    dropout masks by site (encoder.embedding_dropout and those of the layers); None in evaluation.
    Norm and segments are optional. Raises ValueError on invalid ids, masks and shapes, and if the
    config has no encoder.
    """
    config.need_encoder()
    keep = dropout.part(keep, "encoder")
    x_bsd, mask_bhts, position_bs = embed(parameters, config, "source", Text.of(source), keep)
    return stacks.encoder(parameters["encoder"], config, x_bsd, mask_bhts, keep, position_bs)


def encode_vjp(
    parameters: Tree, config: Config, source: Text | Array, keep: Keep = None, *, cotangent: Array
) -> Gradients:
    """Backward pass through encoder and embedding. Returns parameters, and source if it is soft."""
    config.need_encoder()
    keep, text = dropout.part(keep, "encoder"), Text.of(source)
    x_bsd, mask_bhts, position_bs = embed(parameters, config, "source", text, keep)
    given = parameters["encoder"], config, x_bsd, mask_bhts, keep, position_bs
    inner = stacks.encoder_vjp(*given, cotangent=cotangent)
    embedded = embed_vjp(parameters, config, "source", text, keep, cotangent=inner["x_bsd"])
    return embedded | {"parameters": {**embedded["parameters"], "encoder": inner["parameters"]}}


def decode(
    parameters: Tree,
    config: Config,
    target: Text | Array,
    memory_bsd: Array | None = None,
    source_mask_bs: Mask = None,
    keep: Keep = None,
    routed: layers.Routed = None,
) -> Array:
    """`logits(decoder(dropout(norm(embedding(target) + position)), memory))`, `b t v`.

    Row t scores the token after target t. target: ids `b t`, or soft one-hot rows `b t v`; a Text
    also has a mask. memory_bsd: the vectors attended to; None for a decoder-only model.
    source_mask_bs: the memory's real tokens. keep: dropout masks by site, of the embedding and the
    layers; None in evaluation. routed: collects the logits of the layers' routers. Raises
    ValueError on invalid ids, masks and shapes, and if the config has no decoder.
    """
    memory = _memory(config, memory_bsd, source_mask_bs, target)
    keep, own = dropout.part(keep, "decoder"), parameters["decoder"]
    x_btd, mask_bhts, position_bt = embed(parameters, config, "target", Text.of(target), keep)
    others: dict[str, Any] = {} if routed is None else {"routed": routed}
    y_btd = stacks.decoder(own, config, x_btd, memory, mask_bhts, keep, position_bt, **others)
    return logits(parameters, config, y_btd)


def decode_vjp(
    parameters: Tree,
    config: Config,
    target: Text | Array,
    memory_bsd: Array | None = None,
    source_mask_bs: Mask = None,
    keep: Keep = None,
    *,
    cotangent: Array,
    routed_lbtx: Array | None = None,
) -> Gradients:
    """Backward pass through logits, decoder and embedding.

    Returns parameters, memory_bsd if there is a memory, and target if it is soft. The gradient of a
    table tied to the logits' kernel is the sum of both uses. routed_lbtx: the cotangents of the
    layers' router logits.
    """
    memory = _memory(config, memory_bsd, source_mask_bs, target)
    keep, text = dropout.part(keep, "decoder"), Text.of(target)
    x_btd, mask_bhts, position_bt = embed(parameters, config, "target", text, keep)
    given = parameters["decoder"], config, x_btd, memory, mask_bhts, keep, position_bt
    last = logits_vjp(parameters, config, stacks.decoder(*given), cotangent=cotangent)
    others: dict[str, Any] = {} if routed_lbtx is None else {"routed_lbtx": routed_lbtx}
    inner = stacks.decoder_vjp(*given, cotangent=last["x_btd"], **others)
    embedded = embed_vjp(parameters, config, "target", text, keep, cotangent=inner.pop("x_btd"))
    gradients = {**embedded["parameters"], "decoder": inner["parameters"]}
    return inner | embedded | {"parameters": add(gradients, last["parameters"])}


def encoder_output(
    parameters: Tree, config: Config, head: str, source: Text | Array, keep: Keep = None
) -> Array:
    """`encode(source)`, passed through a head. head: as in `heads.output`; empty for none."""
    if head:
        config.need(head)
    x_bsd = encode(parameters, config, source, keep)
    return heads.output(parameters, config, head, x_bsd, keep) if head else x_bsd


def encoder_output_vjp(
    parameters: Tree,
    config: Config,
    head: str,
    source: Text | Array,
    keep: Keep = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Backward pass through head and encoder. Returns parameters, and source if it is soft."""
    if not head:
        return encode_vjp(parameters, config, source, keep, cotangent=cotangent)
    config.need(head)
    x_bsd = encode(parameters, config, source, keep)
    last = heads.output_vjp(parameters, config, head, x_bsd, keep, cotangent=cotangent)
    first = encode_vjp(parameters, config, source, keep, cotangent=last["x_bsd"])
    return first | {"parameters": add(first["parameters"], last["parameters"])}


def training_loss(
    parameters: Tree,
    config: Config,
    source: Text | Array | None,
    target: Array,
    smoothing: float = 0.0,
    total: int | None = None,
    keep: Keep = None,
    router_aux_weight: float = 0.0,
    router_z_weight: float = 0.0,
) -> Array:
    """The cross-entropy of every target token after the first, given those before it: a scalar.

    source: as `transformer`. target: integer ids `b t`, with start and end tokens; padding labels
    do not count. smoothing, total: as `loss.cross_entropy`. keep: dropout masks by site, whose
    targets are one shorter than `target`. router_aux_weight, router_z_weight: as
    `loss.router_loss`. If one is not 0, that loss of the real tokens whose labels count is added,
    times the share of these labels in `total` (BALANCE). Raises ValueError as `cross_entropy` and
    `transformer` do, and if there are weights but no routers.
    """
    input_bt, label_bt = loss.teacher_forcing(target)
    mask_bt = mask.token_mask(label_bt, config.padding_id)
    labels, weights = (label_bt, mask_bt, smoothing, total), (router_aux_weight, router_z_weight)
    if not any(weights):
        logits_btv = transformer(parameters, config, source, input_bt, keep=keep)
        return loss.cross_entropy(logits_btv, *labels)
    logits_btv, routed = routes(parameters, config, source, input_bt, mask_bt, keep)
    value = loss.cross_entropy(logits_btv, *labels)
    added = loss.share(mask_bt, total) * loss.router_loss(*routed, *weights)
    return value + added.astype(value.dtype)


def training_loss_vjp(
    parameters: Tree,
    config: Config,
    source: Text | Array | None,
    target: Array,
    smoothing: float = 0.0,
    total: int | None = None,
    keep: Keep = None,
    router_aux_weight: float = 0.0,
    router_z_weight: float = 0.0,
    *,
    cotangent: Array,
) -> Gradients:
    """Backward pass through loss and model. Returns parameters, and source if it is soft."""
    input_bt, label_bt = loss.teacher_forcing(target)
    mask_bt = mask.token_mask(label_bt, config.padding_id)
    labels, weights = (label_bt, mask_bt, smoothing, total), (router_aux_weight, router_z_weight)
    if not any(weights):
        logits_btv = transformer(parameters, config, source, input_bt, keep=keep)
        inner = loss.cross_entropy_vjp(logits_btv, *labels, cotangent=cotangent)
        g_btv = inner["logits_btv"]
        return transformer_vjp(parameters, config, source, input_bt, keep=keep, cotangent=g_btv)
    logits_btv, routed = routes(parameters, config, source, input_bt, mask_bt, keep)
    g_btv = loss.cross_entropy_vjp(logits_btv, *labels, cotangent=cotangent)["logits_btv"]
    part = loss.share(mask_bt, total) * arithmetic.upcast_half(np.asarray(cotangent))
    g_lbtx = loss.router_loss_vjp(*routed, *weights, cotangent=part)["logits_lbtx"]
    given = parameters, config, input_bt, None, None, keep
    return decode_vjp(*given, cotangent=g_btv, routed_lbtx=g_lbtx)


def routes(
    parameters: Tree,
    config: Config,
    source: Text | Array | None,
    target: Array,
    mask_bt: Array,
    keep: Keep,
) -> tuple[Array, tuple[Array, int, Array]]:
    """Returns the logits and the arguments of `loss.router_loss`, without its weights.

    mask_bt: which tokens have a label that counts.
    """
    config.need_router_loss()
    sides(config, source, target)
    routed: list[Array] = []
    logits_btv = decode(parameters, config, target, keep=keep, routed=routed)
    scored_bt = mask_bt & inputs.real(config, Text(target))
    return logits_btv, (np.stack(routed), config.experts_per_token, scored_bt)


def sides(
    config: Config, source: Text | Array | None, target: Text | Array | None
) -> tuple[Text | None, Text | None]:
    """Returns both sides of a model's input as texts; ValueError on missing or extra ones."""
    if source is not None:
        source = Text.of(source)
    if target is not None:
        target = Text.of(target)
    checks.check_target_given(config.decoder_layers, target)
    checks.check_source_given(config.encoder_layers, source)
    if source is not None and target is not None:
        checks.check_same_batch(source=source.ids.shape, target=target.ids.shape)
    return source, target


def embed(
    parameters: Tree, config: Config, side: str, text: Text, keep: Keep
) -> tuple[Array, Array, Array]:
    """Returns the input of the first layer, the mask that hides padding, and the positions."""
    mask_bt, position_bt = inputs.masked_positions(config, side, text.ids, text.mask_bt)
    x_btd = inputs.embed(parameters, config, side, text.ids, position_bt, text.segment_bt)
    keep_btd = dropout.part(keep, "embedding_dropout")
    dropped_btd = dropout.dropout(x_btd, keep_btd, config.dropout_rate)
    return dropped_btd, mask.padding_mask(mask_bt), position_bt


def embed_vjp(
    parameters: Tree, config: Config, side: str, text: Text, keep: Keep, *, cotangent: Array
) -> Gradients:
    keep_btd, rate = dropout.part(keep, "embedding_dropout"), config.dropout_rate
    g_btd = dropout.dropout_vjp(cotangent, keep_btd, rate, cotangent=cotangent)["x"]
    _, position_bt = inputs.masked_positions(config, side, text.ids, text.mask_bt)
    given = parameters, config, side, text.ids, position_bt, text.segment_bt
    return inputs.embed_vjp(*given, cotangent=g_btd)


def _memory(
    config: Config, memory_bsd: Array | None, source_mask_bs: Mask, target: Text | Array
) -> Memory | None:
    """Returns the memory, or None; ValueError if it does not match the config and the target."""
    config.need_decoder()
    shape = None if memory_bsd is None else memory_bsd.shape
    checks.check_memory(config.cross_attention, config.model_width, shape, source_mask_bs)
    if memory_bsd is None:
        return None
    checks.check_same_batch(source=memory_bsd.shape, target=Text.of(target).ids.shape)
    if source_mask_bs is None:
        return Memory(memory_bsd)
    kind = str(source_mask_bs.dtype)
    checks.check_token_mask("source mask", source_mask_bs.shape, kind, memory_bsd.shape[:2])
    return Memory(memory_bsd, mask.padding_mask(source_mask_bs))


def logits(parameters: Tree, config: Config, x_btd: Array) -> Array:
    """The logits of the decoder's output, with the config's scale and cap."""
    own = head(parameters, config)
    return embedding.logits(own, x_btd, config.logit_scale, config.logit_cap)


def logits_vjp(parameters: Tree, config: Config, x_btd: Array, *, cotangent: Array) -> Gradients:
    """Returns parameters, where a tied kernel is part of its table, and x_btd."""
    given = head(parameters, config), x_btd, config.logit_scale, config.logit_cap
    last = embedding.logits_vjp(*given, cotangent=cotangent)
    own, tied = last["parameters"], {}
    if config.tie_logits:
        tied = {inputs.table(config, "target"): {"table": own.pop("kernel").T}}
    if own:  # tied logits have at most a bias
        tied["logits"] = own
    return {"parameters": tied, "x_btd": last["x_btd"]}


def head(parameters: Tree, config: Config) -> Tree:
    """Returns the parameters of the logits; a tied kernel is the transposed table."""
    own = parameters.get("logits", {})
    if not config.tie_logits:
        return own
    return {**own, "kernel": parameters[inputs.table(config, "target")]["table"].T}


def real_rows(x_btv: Array, config: Config, target: Array, target_mask_bt: Mask = None) -> Array:
    """Keeps the rows of real target tokens and zeroes those of padding (PADDING)."""
    real_bt = inputs.real(config, Text(target, target_mask_bt))
    return np.where(real_bt[..., None], x_btv, x_btv.dtype.type(0))


def add(first: Tree, second: Tree) -> Gradients:
    """Merges two gradients, adding the parts that both have."""
    flat, other = flatten(first), flatten(second)
    for name, value in other.items():
        flat[name] = flat[name] + value if name in flat else value
    return nest(flat)
