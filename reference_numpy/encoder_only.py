"""Encoder-only models (ALONE): from token ids to a row's classes and to masked tokens' logits."""

from typing import Any

from . import checks, dropout, heads, loss, transformer
from .arrays import Array, Gradients, Keep, Mask, Tree
from .config import TransformerConfig as Config

__all__ = [
    "classification_loss",
    "classification_loss_vjp",
    "classify",
    "classify_vjp",
    "masked_language_logits",
    "masked_language_logits_vjp",
    "pool",
    "pool_vjp",
]


def pool(
    parameters: Tree,
    config: Config,
    source: Array,
    source_mask_bs: Mask = None,
    keep: Keep = None,
    segment_bs: Array | None = None,
) -> Array:
    """`pooler(encode(source))`, `b r`: one vector for each row.

    Arguments and errors match `encode`; a config with no pooler also raises ValueError.
    Source: Devlin et al. 2019, section 3.1.
    """
    config.need("pooler")
    x_bsd = transformer.encode(parameters, config, source, source_mask_bs, keep, segment_bs)
    return heads.pooler(parameters["pooler"], x_bsd, config.pooler_activation)


def pool_vjp(
    parameters: Tree,
    config: Config,
    source: Array,
    source_mask_bs: Mask = None,
    keep: Keep = None,
    segment_bs: Array | None = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Backwards through the pooler and the encoder; parameters, and source where it is soft."""
    inputs = parameters, config, source, source_mask_bs, keep, segment_bs
    x_bsd, name = transformer.encode(*inputs), config.pooler_activation
    last = heads.pooler_vjp(parameters["pooler"], x_bsd, name, cotangent=cotangent)
    first = transformer.encode_vjp(*inputs, cotangent=last["x_bsd"])
    return _with(first, pooler=last["parameters"])


def classify(
    parameters: Tree,
    config: Config,
    source: Array,
    source_mask_bs: Mask = None,
    keep: Keep = None,
    segment_bs: Array | None = None,
) -> Array:
    """`classifier(pool(source))`, `b c`: the logits of each row's classes.

    keep: dropout masks by site, as in `pool`, and classifier_dropout; None evaluates. Arguments
    otherwise match `encode`. Raises ValueError as `encode`, and if the config has no classes.
    Source: Devlin et al. 2019, section 4.1.
    """
    config.need("classes")
    pooled_br = pool(parameters, config, source, source_mask_bs, keep, segment_bs)
    dropped = dropout.part(keep, "classifier_dropout"), config.classifier_dropout_rate
    return heads.classifier(parameters["classifier"], pooled_br, *dropped)


def classify_vjp(
    parameters: Tree,
    config: Config,
    source: Array,
    source_mask_bs: Mask = None,
    keep: Keep = None,
    segment_bs: Array | None = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Backwards through the classifier and `pool`; parameters, and source where it is soft."""
    inputs = parameters, config, source, source_mask_bs, keep, segment_bs
    dropped = dropout.part(keep, "classifier_dropout"), config.classifier_dropout_rate
    last = heads.classifier_vjp(
        parameters["classifier"], pool(*inputs), *dropped, cotangent=cotangent
    )
    first = pool_vjp(*inputs, cotangent=last["pooled_br"])
    return _with(first, classifier=last["parameters"])


def classification_loss(
    parameters: Tree,
    config: Config,
    source: Array,
    label_b: Array,
    smoothing: float = 0.0,
    total: int | None = None,
    keep: Keep = None,
    source_mask_bs: Mask = None,
    segment_bs: Array | None = None,
) -> Array:
    """The cross-entropy of the class of every row: a scalar.

    label_b: integer classes. smoothing, total: as `loss.cross_entropy`; keep: as `classify`. Raises
    ValueError as both do.
    """
    checks.check_classes(label_b.shape, str(label_b.dtype))
    logits_bc = classify(parameters, config, source, source_mask_bs, keep, segment_bs)
    return loss.cross_entropy(logits_bc[:, None], label_b[:, None], None, smoothing, total)


def classification_loss_vjp(
    parameters: Tree,
    config: Config,
    source: Array,
    label_b: Array,
    smoothing: float = 0.0,
    total: int | None = None,
    keep: Keep = None,
    source_mask_bs: Mask = None,
    segment_bs: Array | None = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Backwards through the loss and `classify`; parameters, and source where it is soft."""
    inputs = parameters, config, source, source_mask_bs, keep, segment_bs
    rows = classify(*inputs)[:, None], label_b[:, None]
    inner = loss.cross_entropy_vjp(*rows, None, smoothing, total, cotangent=cotangent)
    return classify_vjp(*inputs, cotangent=inner["logits_btv"][:, 0])


def masked_language_logits(
    parameters: Tree,
    config: Config,
    source: Array,
    source_mask_bs: Mask = None,
    keep: Keep = None,
    segment_bs: Array | None = None,
) -> Array:
    """`masked_language_head(encode(source))`, `b s v`: scores of the token at every position.

    Arguments and errors match `encode`; a config with no such head also raises ValueError.
    Source: Devlin et al. 2019, section 3.1 (MLM).
    """
    config.need("masked_language_head")
    x_bsd = transformer.encode(parameters, config, source, source_mask_bs, keep, segment_bs)
    head = _head(parameters, config)
    return heads.masked_language_head(head, x_bsd, config)


def masked_language_logits_vjp(
    parameters: Tree,
    config: Config,
    source: Array,
    source_mask_bs: Mask = None,
    keep: Keep = None,
    segment_bs: Array | None = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Backwards through the head and the encoder; parameters, and source where it is soft.

    The gradient of a table that is also the head's kernel is the sum of both uses.
    """
    inputs = parameters, config, source, source_mask_bs, keep, segment_bs
    given = _head(parameters, config), transformer.encode(*inputs)
    last = heads.masked_language_head_vjp(*given, config, cotangent=cotangent)
    first, head = transformer.encode_vjp(*inputs, cotangent=last["x_bsd"]), last["parameters"]
    if config.tie_logits:
        table = {"table": head["logits"].pop("kernel").T}
        first["parameters"] = transformer.add(first["parameters"], {"source_embedding": table})
    return _with(first, masked_language_head={name: part for name, part in head.items() if part})


def _with(first: Gradients, **head: Any) -> Gradients:
    """The gradients of the encoder, and those of a head."""
    return first | {"parameters": {**first["parameters"], **head}}


def _head(parameters: Tree, config: Config) -> Tree:
    """The head's parameters; tied, the kernel of its logits is the transposed table."""
    head = parameters["masked_language_head"]
    if not config.tie_logits:
        return head
    kernel_dv = parameters["source_embedding"]["table"].T
    return {**head, "logits": {**head.get("logits", {}), "kernel": kernel_dv}}
