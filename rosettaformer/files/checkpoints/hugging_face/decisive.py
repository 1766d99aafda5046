"""Makes the routers of a random model decisive: few tokens have experts that score almost alike.

In half precision, rounding would otherwise choose the experts of many tokens. Each id has a code, a
score for every expert, along directions of the stream that only the embedding writes. The routers
read it, each for its experts in another order, and a little of everything else. Some ids show a
selection bias and groups: without them, a router would choose other experts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, experts, inputs, layers, normalization, stacks
from reference_numpy.parameters import nest

Weights = dict[str, np.ndarray]
FACTORS = (1.4, 1.0, 0.7)  # of the code, which norms scale a little differently for every token
MARGIN = 0.14  # of the largest score: the error that must not change a choice
LARGEST, CODED, BESIDE = 2.0, 2.0, 0.03  # of the router's logits; of the code in the stream; of all else in the logits
SHOWING, CANDIDATES = 12, 8000  # ids for each choice of the config that they show; codes tried for them
ROUTER = "feed_forward.router"


def decisive(weights: Weights, config: TransformerConfig, seed: int, largest: float = LARGEST, tied: bool = False) -> Weights:
    """Returns the weights with decisive routers. Only decoders with norms before sub-layers change.

    largest: the largest logit of routers. tied: two experts of each router have the same score, and the last id chooses one of them.
    """
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
    if tied:
        for order_x in orders.values():
            order_x[order_x == 1] = 0
        found |= _tied(found, orders)
    code_vx = _codes(config, found, orders, generator, len(table_vd), largest, tied)
    found["target_embedding.table"] = table_vd - table_vd @ directions_dx @ directions_dx.T + size * code_vx @ directions_dx.T
    beside = {name: generator.standard_normal((width, count)) / np.sqrt(width) for name in routers}
    found |= _routers(found, config, directions_dx, orders, beside, largest)
    return found | _tied(found, orders) if tied else found


def _tied(weights: Weights, orders: Mapping[str, np.ndarray]) -> Weights:
    """Returns routers in which the two experts that read the first code are the same."""
    found: Weights = {}
    for router, order_x in orders.items():
        first, second = np.flatnonzero(order_x == 0)
        for name in (router.removesuffix("kernel") + end for end in ("kernel", "bias", "selection_bias")):
            if name in weights:
                found[name] = weights[name].copy()
                found[name][..., second] = weights[name][..., first]
    return found


def _routers(
    weights: Weights,
    config: TransformerConfig,
    directions_dx: np.ndarray,
    orders: Mapping[str, np.ndarray],
    beside: Weights,
    largest: float,
) -> Weights:
    """Returns the routers' kernels: layer by layer, the code in the normalized stream becomes scores up to `largest`."""
    found: Weights = {}
    tree, token = nest(weights), np.arange(min(config.target_vocabulary, 64))[None]

    def layer(index: int, own: Any, x_btd: np.ndarray) -> np.ndarray:
        told = stacks.attending(config, index, x_btd, None, None, causal=True)
        x_btd = layers.residual(own, config, "self_attention", x_btd, lambda y_btd: layers.self_attention(own, config, y_btd, told), None)
        if (name := f"decoder.layers.{index}.{ROUTER}.kernel") in weights:
            y_btd = normalization.norm(own["feed_forward_norm"] | {"scale": np.ones(config.model_width)}, config, x_btd)
            size = float(np.median(np.abs(y_btd @ directions_dx).max(-1)))
            kernel_dx = largest / size * directions_dx[:, orders[name]] + largest * BESIDE * beside[name]
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
    config: TransformerConfig,
    weights: Weights,
    orders: Mapping[str, np.ndarray],
    generator: np.random.Generator,
    count: int,
    largest: float,
    tied: bool,
) -> np.ndarray:
    """Returns codes `v x` between -1 and 1 with which every router decides.

    As many experts as a token chooses have high scores; one more in codes that show a choice. tied: the last one is between two experts.
    """

    def deciding(count: int, high: int) -> np.ndarray:
        code_nx = generator.uniform(-1, -0.3, (count, config.experts))
        high_nk = np.argsort(generator.random(code_nx.shape), axis=1)[:, :high]
        np.put_along_axis(code_nx, high_nk, generator.uniform(0.7, 1, high_nk.shape), axis=1)
        for name, order in orders.items():
            code_nx = code_nx[_decides(config, weights, name, largest, code_nx[:, order])]
        return code_nx

    others, found, high = [*_others(config)], list[np.ndarray](), config.experts_per_token
    code_nx = deciding(CANDIDATES if others else 0, high + 1)
    for other in others:
        pairs = [[_chosen(one, weights, name, largest * code_nx[:, order]) for one in (config, other)] for name, order in orders.items()]
        shown_n = np.any([(own_nx != other_nx).any(-1) for own_nx, other_nx in pairs], axis=0)
        found += [*code_nx[shown_n][: min(SHOWING, count // (1 + len(others)))]]
    while len(found) < count:
        found += [*deciding(count, high)]
    return np.stack([*found[: count - tied], *([_between(config, weights, orders, generator, largest)] if tied else ())])


def _between(
    config: TransformerConfig, weights: Weights, orders: Mapping[str, np.ndarray], generator: np.random.Generator, largest: float
) -> np.ndarray:
    """Returns a code with which every router chooses one of two experts with equal scores, and the others decidedly."""
    k = config.experts_per_token
    code_nx = generator.uniform(-1, -0.3, (CANDIDATES, config.experts))
    high_nk = 2 + np.argsort(generator.random((CANDIDATES, config.experts - 2)), axis=1)[:, : k - 1]
    np.put_along_axis(code_nx, high_nk, generator.uniform(0.7, 1, high_nk.shape), axis=1)
    code_nx[:, 0] = generator.uniform(0.1, 0.3, CANDIDATES)
    for name, order in orders.items():
        one_n = _chosen(config, weights, name, largest * code_nx[:, order])[:, order == 0].sum(-1) == 1
        for count in (k - 1, k + 1):
            one_n &= _decides(config.replace(experts_per_token=count), weights, name, largest, code_nx[:, order])
        code_nx = code_nx[one_n]
    return code_nx[0]


def _others(config: TransformerConfig) -> Iterator[TransformerConfig]:
    """Yields the config with another way to choose experts, for each choice that only some tokens show."""
    for name in ("router_bias", "selection_bias"):
        if getattr(config, name):
            yield config.replace(**{name: False})
    if config.router_groups_kept < config.router_groups:
        yield config.replace(router_groups=1, router_groups_kept=1)
        yield config.replace(router_group_score="best")


def _chosen(config: TransformerConfig, weights: Weights, name: str, product_nx: np.ndarray) -> np.ndarray:
    """Returns the experts that a router chooses, `n x`, by its logits without their bias."""
    router = name.removesuffix(".kernel")
    own = {"selection_bias": weights[f"{router}.selection_bias"]} if config.selection_bias else {}
    logits_1nx = (product_nx + (weights[f"{router}.bias"] if config.router_bias else 0.0))[None]
    return experts.choice(config, experts.choice_scores(own, config, logits_1nx))[0]


def _decides(config: TransformerConfig, weights: Weights, name: str, largest: float, code_nx: np.ndarray) -> np.ndarray:
    """Whether a router chooses the same experts if every score errs by the margin, `n`."""
    same_n = np.ones(len(code_nx), bool)
    for factor in FACTORS:
        first_nx = _chosen(config, weights, name, largest * factor * code_nx)
        grouped = first_nx.reshape(len(code_nx), config.router_groups, config.experts // config.router_groups)
        of_kept_nx = np.broadcast_to(grouped.any(-1, keepdims=True), grouped.shape).reshape(first_nx.shape)
        for lower_nx in (first_nx, of_kept_nx):
            error_nx = np.where(lower_nx, -MARGIN, MARGIN)
            same_n &= (_chosen(config, weights, name, largest * factor * (code_nx + error_nx)) == first_nx).all(-1)
    return same_n
