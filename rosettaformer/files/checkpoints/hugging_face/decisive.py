"""Makes the routers of a random model decisive: few tokens have experts that score almost alike.

In half precision, rounding would otherwise choose the experts of many tokens. Each id has a code, a
score for every expert, along directions of the stream that only the embedding writes. The routers
read it, each for its experts in another order, and a little of everything else.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, experts, inputs, layers, normalization, stacks
from reference_numpy.parameters import nest

Weights = dict[str, np.ndarray]
FACTORS = (1.4, 1.0, 0.7)  # of the code, which norms scale a little differently for every token
MARGIN = 0.14  # of the largest score: the error that must not change a choice
LARGEST, CODED, BESIDE = 2.0, 2.0, 0.03  # of the router's logits; of the code in the stream; of all else in the logits
ROUTER = "feed_forward.router"


def decisive(weights: Weights, config: TransformerConfig, seed: int) -> Weights:
    """Returns the weights with decisive routers. Only decoders with norms before sub-layers change."""
    routers = [name for name in weights if name.endswith(f"{ROUTER}.kernel")]
    count, width = config.experts, config.model_width
    if not routers or config.norm_placement != "pre" or width < 2 * count:
        return weights
    generator = np.random.default_rng([seed, count])
    directions_dx = np.linalg.qr(generator.standard_normal((width, count)))[0]
    found = dict(weights)
    for name, array in weights.items():
        if ".output." in name and name.startswith("decoder.layers"):
            found[name] = array - array @ directions_dx @ directions_dx.T
    orders = {name: _order(config, generator) for name in routers}
    table_vd = weights["target_embedding.table"]
    size = CODED * float(np.sqrt(np.mean(table_vd**2)))
    code_vx = _codes(config, weights, orders, generator, len(table_vd))
    found["target_embedding.table"] = table_vd - table_vd @ directions_dx @ directions_dx.T + size * code_vx @ directions_dx.T
    beside = {name: generator.standard_normal((width, count)) / np.sqrt(width) for name in routers}
    return found | _routers(found, config, directions_dx, orders, beside)


def _routers(
    weights: Weights, config: TransformerConfig, directions_dx: np.ndarray, orders: Mapping[str, np.ndarray], beside: Weights
) -> Weights:
    """Returns the routers' kernels: layer by layer, the code in the normalized stream becomes scores up to LARGEST."""
    found: Weights = {}
    tree, token = nest(weights), np.arange(min(config.target_vocabulary, 64))[None]

    def layer(index: int, own: Any, x_btd: np.ndarray) -> np.ndarray:
        told = stacks.attending(config, index, x_btd, None, None, causal=True)
        x_btd = layers.residual(own, config, "self_attention", x_btd, lambda y_btd: layers.self_attention(own, config, y_btd, told), None)
        if (name := f"decoder.layers.{index}.{ROUTER}.kernel") in weights:
            y_btd = normalization.norm(own["feed_forward_norm"] | {"scale": np.ones(config.model_width)}, config, x_btd)
            largest = float(np.median(np.abs(y_btd @ directions_dx).max(-1)))
            kernel_dx = LARGEST / largest * directions_dx[:, orders[name]] + LARGEST * BESIDE * beside[name]
            found[name] = kernel_dx / own["feed_forward_norm"]["scale"][:, None]
            own["feed_forward"]["router"]["kernel"] = found[name]
        return layers.residual(own, config, "feed_forward", x_btd, lambda y_btd: layers.network(own, config, y_btd), None)

    stacks.walk(tree["decoder"], config, inputs.embed(tree, config, "target", token, token), layer)
    return found


def _order(config: TransformerConfig, generator: np.random.Generator) -> np.ndarray:
    """Returns a random order of the experts that keeps groups together."""
    groups = np.arange(config.experts).reshape(config.router_groups, -1)
    return np.concatenate([generator.permutation(group) for group in generator.permutation(groups)])


def _codes(
    config: TransformerConfig, weights: Weights, orders: Mapping[str, np.ndarray], generator: np.random.Generator, count: int
) -> np.ndarray:
    """Returns codes `v x` between -1 and 1 with which every router decides."""
    found: list[np.ndarray] = []
    while len(found) < count:
        code_nx = generator.uniform(-1, -0.3, (count, config.experts))
        high_nk = np.argsort(generator.random(code_nx.shape), axis=1)[:, : config.experts_per_token]
        np.put_along_axis(code_nx, high_nk, generator.uniform(0.7, 1, high_nk.shape), axis=1)
        for name, order in orders.items():
            code_nx = code_nx[_decides(config, weights, name.removesuffix(".kernel"), code_nx[:, order])]
        found += [*code_nx]
    return np.stack(found[:count])


def _decides(config: TransformerConfig, weights: Weights, name: str, code_nx: np.ndarray) -> np.ndarray:
    """Whether a router chooses the same experts if every score errs by the margin, `n`."""
    own = {"selection_bias": weights[f"{name}.selection_bias"]} if f"{name}.selection_bias" in weights else {}

    def chosen(logits_1nx: np.ndarray) -> np.ndarray:
        return experts.choice(config, experts.choice_scores(own, config, logits_1nx))

    same_n = np.ones(len(code_nx), bool)
    for factor in FACTORS:
        logits_1nx = (LARGEST * factor * code_nx + weights.get(f"{name}.bias", 0.0))[None]
        first_1nx = chosen(logits_1nx)
        grouped = first_1nx.reshape(1, len(code_nx), config.router_groups, config.experts // config.router_groups)
        of_kept_1nx = np.broadcast_to(grouped.any(-1, keepdims=True), grouped.shape).reshape(first_1nx.shape)
        for lower_1nx in (first_1nx, of_kept_1nx):
            error_1nx = np.where(lower_1nx, -MARGIN, MARGIN) * LARGEST * factor
            same_n &= (chosen(logits_1nx + error_1nx) == first_1nx).all(-1)[0]
    return same_n
