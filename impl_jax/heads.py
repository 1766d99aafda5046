"""The heads of encoder-only models: pooler, classifier and masked-language head (HEADS)."""

from typing import Unpack

import jax
import jax.numpy as jnp
from flax import nnx

from reference_numpy import TransformerConfig, checks

from .dropout import Dropout
from .embedding import Logits
from .feed_forward import activation
from .normalization import norm
from .precision import upcast_half
from .projection import Projection
from .values import Mask, Own

__all__ = ["Classifier", "MaskedLanguageHead", "Pooler"]


class Pooler(Projection):
    """`y = activation(x_0 W + b)`, `b r`, where x_0 is the first token; tanh or relu.

    Half-precision dtypes compute tanh in float32.
    """

    def __init__(self, config: TransformerConfig, **own: Unpack[Own]) -> None:
        super().__init__("bd,dr->br", config.sizes, **own)
        self.activation_name = config.pooler_activation

    def __call__(self, x_bsd: jax.Array) -> jax.Array:  # type: ignore[override]
        checks.check_features("x", x_bsd.shape, self.kernel.shape[0])
        pooled_br = super().__call__(x_bsd[:, 0])
        if self.activation_name == "relu":
            return activation(pooled_br, "relu")
        return jnp.tanh(upcast_half(pooled_br)).astype(pooled_br.dtype)


class Classifier(Projection):
    """`logits = dropout(x) W + b`, `b c`, where x is the pooled token: scores of every class."""

    def __init__(self, config: TransformerConfig, **own: Unpack[Own]) -> None:
        super().__init__("br,rc->bc", config.sizes, **own)
        self.dropout = Dropout(config.classifier_dropout_rate, rngs=own["rngs"])

    def __call__(  # type: ignore[override]
        self, pooled_br: jax.Array, keep_br: Mask = None
    ) -> jax.Array:
        checks.check_pooled(pooled_br.shape, self.kernel.shape[0])
        return super().__call__(self.dropout(pooled_br, keep_br))


class MaskedLanguageHead(nnx.Module):
    """`logits = norm(activation(x W + b)) W_v + b_v`, `b s v`: scores of every position's token.

    tied: as in `Logits`; calls pass the transposed source table.
    """

    def __init__(
        self, config: TransformerConfig, *, tied: bool = False, **own: Unpack[Own]
    ) -> None:
        self.hidden = Projection("bsd,dr->bsr", config.sizes, config.head_bias, **own)
        self.norm = norm(config, **own)
        self.logits = Logits(config, config.source_vocabulary, tied=tied, **own)
        self.activation_name, self.width = config.activation, config.model_width

    def __call__(self, x_bsd: jax.Array, kernel_dv: jax.Array | None = None) -> jax.Array:
        checks.check_features("x", x_bsd.shape, self.width)
        hidden_bsr = activation(self.hidden(x_bsd), self.activation_name)
        return self.logits(self.norm(hidden_bsr), kernel_dv)
