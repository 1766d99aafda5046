"""The heads of encoder-only models: pooler, classifier and masked-language head (HEADS)."""

import numpy as np

from . import arithmetic, checks, dropout, embedding, feed_forward, normalization
from .arrays import Array, Gradients, Keep, Mask, Tree
from .config import TransformerConfig as Config

__all__ = [
    "classifier",
    "classifier_vjp",
    "masked_language_head",
    "masked_language_head_vjp",
    "pooler",
    "pooler_vjp",
]


def pooler(parameters: Tree, x_bsd: Array, activation_name: str = "tanh") -> Array:
    """`y = activation(x_0 W + b)`, `b r`, where x_0 is the first token: one vector per row.

    parameters: kernel `d r`, bias `r`, with r = d. activation_name: tanh, which half-precision
    dtypes compute in float32, or relu. Raises ValueError if x is not `b s d` with s at least 1.
    Source: Devlin et al. 2019, section 3.1 ([CLS]).
    """
    return active(_first(parameters, x_bsd), activation_name)


def pooler_vjp(
    parameters: Tree, x_bsd: Array, activation_name: str = "tanh", *, cotangent: Array
) -> Gradients:
    """`du = g activation'(u)`, `u = x_0 W + b`, where tanh' is `1 - tanh^2 u`.

    Returns parameters and x_bsd.
    """
    u_br = _first(parameters, x_bsd)
    if activation_name == "relu":
        g_br = feed_forward.activation_vjp(u_br, "relu", cotangent=cotangent)["x"]
    else:
        wide_br = active(arithmetic.upcast_half(u_br), activation_name)
        slope_br = wide_br.dtype.type(1) - wide_br * wide_br
        g_br = (arithmetic.upcast_half(cotangent) * slope_br).astype(x_bsd.dtype, copy=False)
    first_bd, gradients = arithmetic.affine_vjp("bd,dr->br", x_bsd[:, 0], parameters, g_br)
    gradient_bsd = np.zeros_like(x_bsd)
    gradient_bsd[:, 0] = first_bd
    return {"parameters": gradients, "x_bsd": gradient_bsd}


def classifier(
    parameters: Tree, pooled_br: Array, keep_br: Mask = None, dropout_rate: float = 0.0
) -> Array:
    """`logits = dropout(x) W + b`, `b c`, where x is the pooled token: scores of every class.

    parameters: kernel `r c`, bias `c`. keep_br: dropout mask, True = keep. Raises ValueError if x
    is not `b r`. Source: Devlin et al. 2019, section 4.1.
    """
    checks.check_pooled(pooled_br.shape, parameters["kernel"].shape[0])
    dropped_br = dropout.dropout(pooled_br, keep_br, dropout_rate)
    return arithmetic.affine("br,rc->bc", dropped_br, parameters)


def classifier_vjp(
    parameters: Tree,
    pooled_br: Array,
    keep_br: Mask = None,
    dropout_rate: float = 0.0,
    *,
    cotangent: Array,
) -> Gradients:
    """Backward pass through dense layer and dropout. Returns parameters and pooled_br."""
    dropped_br = dropout.dropout(pooled_br, keep_br, dropout_rate)
    g_br, gradients = arithmetic.affine_vjp("br,rc->bc", dropped_br, parameters, cotangent)
    g_br = dropout.dropout_vjp(pooled_br, keep_br, dropout_rate, cotangent=g_br)["x"]
    return {"parameters": gradients, "pooled_br": g_br}


def masked_language_head(parameters: Tree, x_bsd: Array, config: Config) -> Array:
    """`logits = norm(activation(x W + b)) W_v + b_v`, `b s v`: scores of every position's token.

    parameters: hidden.kernel `d r`, hidden.bias `r` if head_bias; norm; logits.kernel `d v` (tied:
    the transposed source table); logits.bias `v` if output_bias. config: activation, norm, logit
    scale and cap. Raises ValueError if x is not `b s d`. Source: Devlin et al. 2019, appendix A.2,
    and published code.
    """
    checks.check_features("x", x_bsd.shape, parameters["hidden"]["kernel"].shape[0])
    hidden_bsr = arithmetic.affine("bsd,dr->bsr", x_bsd, parameters["hidden"])
    active_bsr = feed_forward.activation(hidden_bsr, config.activation)
    normed_bsr = normalization.norm(parameters.get("norm", {}), config, active_bsr)
    return embedding.logits(parameters["logits"], normed_bsr, config.logit_scale, config.logit_cap)


def masked_language_head_vjp(
    parameters: Tree, x_bsd: Array, config: Config, *, cotangent: Array
) -> Gradients:
    """Backward pass through logits, norm, activation and dense layer, to parameters and x_bsd."""
    hidden_bsr = arithmetic.affine("bsd,dr->bsr", x_bsd, parameters["hidden"])
    active_bsr = feed_forward.activation(hidden_bsr, config.activation)
    normed_bsr = normalization.norm(parameters.get("norm", {}), config, active_bsr)
    own, scale, cap = parameters["logits"], config.logit_scale, config.logit_cap
    last = embedding.logits_vjp(own, normed_bsr, scale, cap, cotangent=cotangent)
    own, g_bsr = parameters.get("norm", {}), last["x_btd"]
    normed = normalization.norm_vjp(own, config, active_bsr, cotangent=g_bsr)
    g_bsr = normed["x_btd"]
    g_bsr = feed_forward.activation_vjp(hidden_bsr, config.activation, cotangent=g_bsr)["x"]
    g_bsd, hidden = arithmetic.affine_vjp("bsd,dr->bsr", x_bsd, parameters["hidden"], g_bsr)
    gradients = {"hidden": hidden, "norm": normed["parameters"], "logits": last["parameters"]}
    return {"parameters": gradients, "x_bsd": g_bsd}


def output(parameters: Tree, config: Config, head: str, x_bsd: Array, keep: Keep = None) -> Array:
    """Applies a head to the encoder's output: `b r`, `b c` or `b s v`.

    parameters: of the whole model. head: the config field that adds it, "pooler", "classes" or
    "masked_language_head".
    """
    if head == "masked_language_head":
        return masked_language_head(_untied(parameters, config), x_bsd, config)
    pooled_br = pooler(parameters["pooler"], x_bsd, config.pooler_activation)
    if head == "pooler":
        return pooled_br
    keep_br, rate = dropout.part(keep, "classifier_dropout"), config.classifier_dropout_rate
    return classifier(parameters["classifier"], pooled_br, keep_br, rate)


def output_vjp(
    parameters: Tree,
    config: Config,
    head: str,
    x_bsd: Array,
    keep: Keep = None,
    *,
    cotangent: Array,
) -> Gradients:
    """Returns parameters and x_bsd. A tied kernel passes its gradient, transposed, to the table."""
    if head == "masked_language_head":
        own = _untied(parameters, config)
        inner = masked_language_head_vjp(own, x_bsd, config, cotangent=cotangent)
        own, tied = inner["parameters"], {}
        if config.tie_logits:
            tied = {"source_embedding": {"table": own["logits"].pop("kernel").T}}
        own = {name: part for name, part in own.items() if part}
        return {"parameters": {**tied, head: own}, "x_bsd": inner["x_bsd"]}
    found, activation_name = {}, config.pooler_activation
    if head == "classes":
        pooled_br = pooler(parameters["pooler"], x_bsd, activation_name)
        keep_br, rate = dropout.part(keep, "classifier_dropout"), config.classifier_dropout_rate
        given = parameters["classifier"], pooled_br, keep_br, rate
        last = classifier_vjp(*given, cotangent=cotangent)
        found["classifier"], cotangent = last["parameters"], last["pooled_br"]
    first = pooler_vjp(parameters["pooler"], x_bsd, activation_name, cotangent=cotangent)
    return {"parameters": {"pooler": first["parameters"], **found}, "x_bsd": first["x_bsd"]}


def _untied(parameters: Tree, config: Config) -> Tree:
    """Returns the masked-language head's parameters, with the kernel of tied logits."""
    head = parameters["masked_language_head"]
    if not config.tie_logits:
        return head
    kernel_dv = parameters["source_embedding"]["table"].T
    return {**head, "logits": {**head.get("logits", {}), "kernel": kernel_dv}}


def _first(parameters: Tree, x_bsd: Array) -> Array:
    """`x_0 W + b`."""
    checks.check_features("x", x_bsd.shape, parameters["kernel"].shape[0])
    return arithmetic.affine("bd,dr->br", x_bsd[:, 0], parameters)


def active(x: Array, name: str) -> Array:
    if name == "relu":
        return feed_forward.activation(x, "relu")
    return arithmetic.tanh(arithmetic.upcast_half(x)).astype(x.dtype, copy=False)
