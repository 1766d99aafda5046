"""Encoder-only models (ALONE): the classes of a row, and the logits of masked tokens."""

from . import checks, loss, transformer
from .arrays import Array, Gradients, Keep, Tree
from .config import TransformerConfig as Config
from .values import Text

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


def pool(parameters: Tree, config: Config, source: Text | Array, keep: Keep = None) -> Array:
    """`pooler(encode(source))`, `b r`: one vector for each row.

    Arguments and errors match `encode`; also raises ValueError if the config has no pooler.
    Source: Devlin et al. 2019, section 3.1.
    """
    return transformer.encoder_output(parameters, config, "pooler", source, keep)


def pool_vjp(
    parameters: Tree, config: Config, source: Text | Array, keep: Keep = None, *, cotangent: Array
) -> Gradients:
    """Backward pass through pooler and encoder. Returns parameters, and source if it is soft."""
    given = "pooler", source, keep
    return transformer.encoder_output_vjp(parameters, config, *given, cotangent=cotangent)


def classify(parameters: Tree, config: Config, source: Text | Array, keep: Keep = None) -> Array:
    """`classifier(pool(source))`, `b c`: the logits of each row's classes.

    keep: dropout masks by site, as in `pool`, and classifier_dropout; None in evaluation. Other
    arguments match `encode`. Raises ValueError as `encode` does, and if the config has no classes.
    Source: Devlin et al. 2019, section 4.1.
    """
    return transformer.encoder_output(parameters, config, "classes", source, keep)


def classify_vjp(
    parameters: Tree, config: Config, source: Text | Array, keep: Keep = None, *, cotangent: Array
) -> Gradients:
    """Backward pass through classifier and `pool`. Returns parameters, and source if it is soft."""
    given = "classes", source, keep
    return transformer.encoder_output_vjp(parameters, config, *given, cotangent=cotangent)


def classification_loss(
    parameters: Tree,
    config: Config,
    source: Text | Array,
    label_b: Array,
    smoothing: float = 0.0,
    total: int | None = None,
    keep: Keep = None,
) -> Array:
    """`cross_entropy(classify(source), label)`, a scalar: the loss of the class of every row.

    label_b: integer classes. smoothing, total: as `loss.cross_entropy`; keep: as `classify`.
    Raises ValueError as both do.
    """
    checks.check_classes(label_b.shape, str(label_b.dtype))
    logits_bc = classify(parameters, config, source, keep)
    return loss.cross_entropy(logits_bc[:, None], label_b[:, None], None, smoothing, total)


def classification_loss_vjp(
    parameters: Tree,
    config: Config,
    source: Text | Array,
    label_b: Array,
    smoothing: float = 0.0,
    total: int | None = None,
    keep: Keep = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Backward pass through loss and `classify`. Returns parameters, and source if it is soft."""
    rows = classify(parameters, config, source, keep)[:, None], label_b[:, None]
    inner = loss.cross_entropy_vjp(*rows, None, smoothing, total, cotangent=cotangent)
    g_bc = inner["logits_btv"][:, 0]
    return classify_vjp(parameters, config, source, keep, cotangent=g_bc)


def masked_language_logits(
    parameters: Tree, config: Config, source: Text | Array, keep: Keep = None
) -> Array:
    """`masked_language_head(encode(source))`, `b s v`: scores of the token at every position.

    Arguments and errors match `encode`; also raises ValueError if the config has no such head.
    Source: Devlin et al. 2019, section 3.1 (MLM).
    """
    return transformer.encoder_output(parameters, config, "masked_language_head", source, keep)


def masked_language_logits_vjp(
    parameters: Tree, config: Config, source: Text | Array, keep: Keep = None, *, cotangent: Array
) -> Gradients:
    """Backward pass through head and encoder. Returns parameters, and source if it is soft.

    The gradient of a table tied to the head's kernel is the sum of both uses.
    """
    given = "masked_language_head", source, keep
    return transformer.encoder_output_vjp(parameters, config, *given, cotangent=cotangent)
