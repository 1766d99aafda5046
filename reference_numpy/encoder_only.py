"""An encoder alone, from token ids to the classes of a row and the logits of masked tokens, and the loss of its classes (ALONE)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import checks, heads, loss, transformer
from .config import TransformerConfig

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

Tree = Mapping[str, Any]


def pool(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    keep: Tree | None = None,
    segment_bs: np.ndarray | None = None,
) -> np.ndarray:
    """`pooler(encode(source))`, `b r`: one vector for each row.

    Arguments and errors as `encode`; ValueError where the config has no pooler. Source: Devlin et al. 2019, section 3.1.
    """
    config.need("pooler")
    return heads.pooler(
        parameters["pooler"],
        transformer.encode(parameters, config, source, source_mask_bs, keep, segment_bs),
    )


def pool_vjp(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    keep: Tree | None = None,
    segment_bs: np.ndarray | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """Backwards through the pooler and the encoder; parameters, and source where it is soft."""
    x_bsd = transformer.encode(parameters, config, source, source_mask_bs, keep, segment_bs)
    inner = heads.pooler_vjp(parameters["pooler"], x_bsd, cotangent=cotangent)
    first = transformer.encode_vjp(
        parameters, config, source, source_mask_bs, keep, segment_bs, cotangent=inner["x_bsd"]
    )
    return first | {"parameters": first["parameters"] | {"pooler": inner["parameters"]}}


def classify(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    keep: Tree | None = None,
    segment_bs: np.ndarray | None = None,
) -> np.ndarray:
    """`classifier(pool(source))`, `b c`: the logits of each row's classes.

    Arguments as `encode`; keep: those of the encoder's sites, and classifier_dropout. Raises ValueError as `encode`, and where the config
    has no classes. Source: Devlin et al. 2019, section 4.1.
    """
    config.need("classes")
    pooled_br = pool(parameters, config, source, source_mask_bs, keep, segment_bs)
    return heads.classifier(
        parameters["classifier"],
        pooled_br,
        (keep or {}).get("classifier_dropout"),
        config.classifier_dropout_rate,
    )


def classify_vjp(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    keep: Tree | None = None,
    segment_bs: np.ndarray | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """Backwards through the classifier, the pooler and the encoder; parameters, and source where it is soft."""
    pooled_br = pool(parameters, config, source, source_mask_bs, keep, segment_bs)
    settings = (keep or {}).get("classifier_dropout"), config.classifier_dropout_rate
    last = heads.classifier_vjp(parameters["classifier"], pooled_br, *settings, cotangent=cotangent)
    first = pool_vjp(
        parameters, config, source, source_mask_bs, keep, segment_bs, cotangent=last["pooled_br"]
    )
    return first | {"parameters": first["parameters"] | {"classifier": last["parameters"]}}


def classification_loss(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray,
    label_b: np.ndarray,
    smoothing: float = 0.0,
    total: int | None = None,
    keep: Tree | None = None,
    source_mask_bs: np.ndarray | None = None,
    segment_bs: np.ndarray | None = None,
) -> np.ndarray:
    """The cross-entropy of the class of every row: a scalar.

    label_b: integer classes. smoothing and total as `loss.cross_entropy`, keep as `classify`. Raises ValueError as both do.
    """
    checks.check_classes(label_b.shape, str(label_b.dtype))
    logits_bc = classify(parameters, config, source, source_mask_bs, keep, segment_bs)
    return loss.cross_entropy(logits_bc[:, None], label_b[:, None], None, smoothing, total)


def classification_loss_vjp(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray,
    label_b: np.ndarray,
    smoothing: float = 0.0,
    total: int | None = None,
    keep: Tree | None = None,
    source_mask_bs: np.ndarray | None = None,
    segment_bs: np.ndarray | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """Backwards through the loss and the whole model; parameters, and source where it is soft."""
    logits_bc = classify(parameters, config, source, source_mask_bs, keep, segment_bs)
    inner = loss.cross_entropy_vjp(
        logits_bc[:, None], label_b[:, None], None, smoothing, total, cotangent=cotangent
    )
    return classify_vjp(
        parameters,
        config,
        source,
        source_mask_bs,
        keep,
        segment_bs,
        cotangent=inner["logits_btv"][:, 0],
    )


def masked_language_logits(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    keep: Tree | None = None,
    segment_bs: np.ndarray | None = None,
) -> np.ndarray:
    """`masked_language_head(encode(source))`, `b s v`: scores of what stands at every position, given all of the row.

    Arguments and errors as `encode`; ValueError where the config has no such head. Source: Devlin et al. 2019, section 3.1 (MLM).
    """
    config.need("masked_language_head")
    x_bsd = transformer.encode(parameters, config, source, source_mask_bs, keep, segment_bs)
    return heads.masked_language_head(
        _head(parameters, config), x_bsd, config.activation, config.epsilon
    )


def masked_language_logits_vjp(
    parameters: Tree,
    config: TransformerConfig,
    source: np.ndarray,
    source_mask_bs: np.ndarray | None = None,
    keep: Tree | None = None,
    segment_bs: np.ndarray | None = None,
    *,
    cotangent: np.ndarray,
) -> dict[str, Any]:
    """Backwards through the head and the encoder; the gradient of a table that is also the head's kernel is the sum of both uses."""
    x_bsd = transformer.encode(parameters, config, source, source_mask_bs, keep, segment_bs)
    settings = config.activation, config.epsilon
    last = heads.masked_language_head_vjp(
        _head(parameters, config), x_bsd, *settings, cotangent=cotangent
    )
    first = transformer.encode_vjp(
        parameters, config, source, source_mask_bs, keep, segment_bs, cotangent=last["x_bsd"]
    )
    gradients, head = first["parameters"], last["parameters"]
    if config.tie_logits:
        gradients = transformer.add(
            gradients, {"source_embedding": {"table": head["logits"].pop("kernel").T}}
        )
    return first | {
        "parameters": {
            **gradients,
            "masked_language_head": {name: part for name, part in head.items() if part},
        }
    }


def _head(parameters: Tree, config: TransformerConfig) -> Tree:
    """The parameters of the masked-language head; tied, the kernel of its logits is the transposed table."""
    head = parameters["masked_language_head"]
    if not config.tie_logits:
        return head
    return {
        **head,
        "logits": {**head.get("logits", {}), "kernel": parameters["source_embedding"]["table"].T},
    }
