"""Random valid cases: any config, any component, any masks."""

from typing import Any

import numpy as np

from reference_numpy import TransformerConfig, preset
from reference_numpy.config import ACTIVATIONS, EXPERT_WEIGHTED, GROUP_MASKS, GROUP_SCORES, NORM_PLACEMENTS, PARALLEL, ROUTER_SCORES
from rosettaformer.judge.case import Case
from rosettaformer.judge.suite.build import parameters_of
from rosettaformer.judge.suite.experts import decisive

COMPONENTS = (
    "embedding", "positional_encoding", "softmax", "scaled_dot_product_attention", "multi_head_attention", "feed_forward", "layer_norm",
    "encoder_layer", "decoder_layer", "encoder", "decoder", "logits", "transformer", "transformer",
)  # fmt: skip
ROUTED = ("router", "mixture_of_experts")


def random_config(rng: np.random.Generator) -> TransformerConfig:
    """Returns a valid config in which every field takes every kind of value.

    The width is at least 4: a norm over two or three features is close to a step function, and no tolerance can tell a wrong step from a
    last bit that rounds to the other side.
    """
    groups, share, decoders = int(rng.integers(1, 4)), bool(rng.integers(2)), int(rng.integers(1, 4))
    source, target = (int(size) for size in rng.integers(3, 40, 2))
    return preset("tiny").replace(
        source_vocabulary=source,
        target_vocabulary=source if share else target,
        model_width=int(rng.integers(4, 24)),
        heads=groups * int(rng.integers(1, 4)),
        key_value_heads=groups,
        key_size=int(rng.integers(1, 12)),
        value_size=int(rng.integers(1, 12)),
        feed_forward_width=int(rng.integers(1, 40)),
        encoder_layers=int(rng.integers(1, 4)),
        decoder_layers=decoders,
        activation=str(rng.choice(ACTIVATIONS)),
        norm_placement=str(rng.choice([one for one in NORM_PLACEMENTS if one not in PARALLEL])),
        final_norm=bool(rng.integers(2)),
        epsilon=float(10.0 ** -rng.integers(3, 9)),
        scale_embedding=bool(rng.integers(2)),
        share_embeddings=share,
        tie_logits=bool(rng.integers(2)),
        attention_bias=bool(rng.integers(2)),
        output_bias=bool(rng.integers(2)),
        padding_id=int(rng.integers(0, 3)) if rng.integers(4) else None,
        dropout_rate=float(rng.choice([0.0, 0.1, 0.5])),
    )


def with_experts(config: TransformerConfig, rng: np.random.Generator) -> TransformerConfig:
    """Returns the config with experts of every kind, with or without groups."""
    groups, in_group = int(rng.integers(1, 4)), int(rng.integers(2, 7))
    kept, flag = int(rng.integers(1, groups + 1)), lambda: bool(rng.integers(2))
    return config.replace(
        experts=groups * in_group,
        experts_per_token=int(rng.integers(1, kept * in_group + 1)),
        expert_width=int(rng.integers(1, 20)),
        expert_weighted=str(rng.choice(EXPERT_WEIGHTED)),
        shared_width=int(rng.integers(0, 3)),
        shared_gate=flag(),
        router_scores=str(rng.choice(ROUTER_SCORES)),
        router_bias=flag(),
        selection_bias=flag(),
        router_normalize=flag(),
        router_epsilon=float(rng.choice([0.0, 1e-20, 0.1])),
        router_scale=float(rng.uniform(0.5, 3)),
        router_groups=groups,
        router_groups_kept=kept,
        router_group_score=str(rng.choice(GROUP_SCORES)),
        router_group_mask=str(rng.choice(GROUP_MASKS)),
        gated_feed_forward=flag(),
        feed_forward_bias=flag(),
        gate_limit=float(rng.uniform(0.5, 2)) if flag() else None,
        hidden_offset=float(rng.integers(0, 2)),
    )


def random_case(seed: int, component: str = "") -> Case:
    """Returns the case of that seed: the component, or a random one, with random config, inputs, lengths and masks."""
    rng = np.random.default_rng(seed)
    config, component = random_config(rng), component or str(rng.choice([*COMPONENTS, *ROUTED]))
    config = with_experts(config, rng) if component in ROUTED else config
    sizes = {"b": int(rng.integers(1, 5)), "t": int(rng.integers(1, 12)), "s": int(rng.integers(1, 12))}
    inputs = _inputs(component, config, sizes, rng)
    try:
        parameters = parameters_of(config, component, rng)
    except ValueError:  # a component without parameters
        parameters = {}
    case = Case(f"random_{seed}", component, config, inputs, parameters)
    return decisive(case) if component in ROUTED else case


def _inputs(component: str, config: TransformerConfig, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, Any]:
    b, t, s, d = sizes["b"], sizes["t"], sizes["s"], config.model_width
    x, memory = rng.standard_normal((b, t, d)), rng.standard_normal((b, s, d))
    cross, own = _mask(rng, b, config.heads, t, s), _mask(rng, b, config.heads, t, t)
    causal = bool(rng.integers(2))
    match component:
        case "embedding":
            return {"token": _tokens(rng, b, t, config.source_vocabulary)}
        case "positional_encoding":
            return {"position_bt": rng.integers(0, 5000, (b, t))}
        case "softmax":
            return {"logits": 10.0 ** rng.integers(-2, 3) * rng.standard_normal((b, config.heads, t, s)), "mask": cross}
        case "scaled_dot_product_attention":
            query = rng.standard_normal((b, t, config.heads, config.key_size))
            key = rng.standard_normal((b, s, config.key_value_heads, config.key_size))
            value = rng.standard_normal((b, s, config.key_value_heads, config.value_size))
            options = {"mask_bhts": cross, "causal": causal, "return_weights": bool(rng.integers(2))}
            return {"query_bthk": query, "key_bsgk": key, "value_bsge": value, **options}
        case "multi_head_attention":
            return {"query_btd": x, "memory_bsd": memory, "mask_bhts": cross, "causal": causal, "return_weights": bool(rng.integers(2))}
        case "encoder_layer":
            return {"x_btd": x, "mask_bhts": own}
        case "encoder":
            return {"x_bsd": x, "mask_bhts": own}
        case "decoder_layer" | "decoder":
            return {"x_btd": x, "memory_bsd": memory, "self_mask_bhts": own, "cross_mask_bhts": cross}
        case "transformer":
            tokens = {"source": _tokens(rng, b, s, config.source_vocabulary), "target": _tokens(rng, b, t, config.target_vocabulary)}
            return tokens | {"skip_padding": bool(rng.integers(2))}
    return {"x_btd": x}


def _tokens(rng: np.random.Generator, batch: int, length: int, vocabulary: int) -> np.ndarray:
    """Returns ids with frequent padding, or occasionally soft rows."""
    if rng.integers(5) == 0:
        return rng.dirichlet(np.ones(vocabulary), (batch, length))
    return np.where(rng.random((batch, length)) < 0.3, rng.integers(0, 3, (batch, length)), rng.integers(0, vocabulary, (batch, length)))


def _mask(rng: np.random.Generator, b: int, h: int, t: int, s: int) -> np.ndarray | None:
    """Returns None or a mask of any broadcastable shape, possibly with empty rows."""
    if rng.integers(3) == 0:
        return None
    shape = [size if rng.integers(2) else 1 for size in (b, h, t)] + [s]
    return rng.random(shape) < rng.choice([0.2, 0.7, 0.95])
