"""New checkpoints whose routers choose where rounding, or a wrong dtype, decides.

- ties: two experts of every router have equal scores, and one token id chooses one of them. The
  choice is undecided, so `check` reports it and does not judge it.
- dyadic: an expert's score exceeds another's by one of two products of powers of two, which a
  router loses that computes in half precision. In a model of one layer, whose attention is zero,
  the router's input is exact in every dtype.
- bias: the selection biases are near 7, where half precision has no digits for the scores.
"""

import numpy as np

from reference_numpy import TransformerConfig

from .decisive import ROUTER, Weights, decisive

KINDS = ("ties", "dyadic", "bias")
SMALL = 2.0**-12  # added to 1/2, it is lost in half precision
NEAR, STEP = 7.0, 2.0**-5  # selection biases; a unit of bfloat16 there
FLAT = 0.1  # largest logit of a router whose scores are less apart than STEP


def changed(kind: str, weights: Weights, config: TransformerConfig, seed: int) -> Weights:
    """Returns the weights with such routers. Raises ValueError if the model has none, or no selection bias where one is needed."""
    needs = "selection biases" if kind == "bias" else "experts"
    if not (config.selection_bias if kind == "bias" else config.experts):
        raise ValueError(f"a checkpoint of the kind {kind} must have {needs}; this family has none")
    if kind == "ties":
        return decisive(weights, config, seed, tied=True)
    if kind == "bias":
        lower_x = STEP * (np.arange(config.experts) == seed % config.experts)
        near = {name: NEAR - lower_x for name in weights if name.endswith(f"{ROUTER}.selection_bias")}
        return decisive(weights | near, config, seed, largest=FLAT)
    return weights | _dyadic(weights, config, seed)


def _dyadic(weights: Weights, config: TransformerConfig, seed: int) -> Weights:
    """Returns a table of signs, and a router that reads the first two features: of experts 0 and 1, the sign of the second decides.

    What layers add keeps its size relative to the table.
    """
    generator, layer, k = np.random.default_rng([seed, config.experts]), "decoder.layers.0", config.experts_per_token
    drawn_vd = weights["target_embedding.table"]
    table_vd = generator.choice([-1.0, 1.0], drawn_vd.shape)
    table_vd[:, 0] = 1.0
    scale_d = generator.choice([0.5, 1.0, 2.0], config.model_width)
    kernel_dx = np.zeros((config.model_width, config.experts))
    kernel_dx[0] = -generator.integers(2, 9, config.experts) / 8
    kernel_dx[0, : k + 1] = [0.5, 0.5, *[1.0] * (k - 1)]
    kernel_dx[1, 1] = SMALL
    router = f"{layer}.{ROUTER}"
    added = {name: value / np.sqrt(np.mean(drawn_vd**2)) for name, value in weights.items() if ".output." in name}
    zeros = (f"{layer}.self_attention.output.kernel", f"{layer}.self_attention.output.bias", f"{router}.bias", f"{router}.selection_bias")
    found = {name: np.zeros_like(weights[name]) for name in zeros if name in weights}
    exact = {f"{layer}.feed_forward_norm.scale": scale_d, f"{router}.kernel": kernel_dx / scale_d[:, None]}
    return added | found | exact | {"target_embedding.table": table_vd}
