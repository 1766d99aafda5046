# region layers
"""Layers, stacks, and the whole model, for one row of the batch."""

import math

from .attention import multi_head
from .parts import add, affine, feed_forward, layer_norm


def sub_layer(x, parameters, config, name, function):
    """norm(x + f(x)), or x + f(norm(x))."""
    norm = parameters[f"{name}_norm"]
    if config.norm_placement == "pre":
        return add(x, function(layer_norm(x, norm, config.epsilon)))
    return layer_norm(add(x, function(x)), norm, config.epsilon)


def layer(x, parameters, config, seen, memory=None, memory_seen=None):
    x = sub_layer(
        x,
        parameters,
        config,
        "self_attention",
        lambda y: multi_head(y, y, parameters["self_attention"], seen)[0],
    )
    if memory is not None:
        cross = parameters["cross_attention"]
        x = sub_layer(
            x,
            parameters,
            config,
            "cross_attention",
            lambda y: multi_head(y, memory, cross, memory_seen)[0],
        )
    feed = parameters["feed_forward"]
    return sub_layer(
        x, parameters, config, "feed_forward", lambda y: feed_forward(y, feed, config.activation)
    )


def stack(x, parameters, config, seen, memory=None, memory_seen=None):
    for index in range(len(parameters["layers"])):
        x = layer(x, parameters["layers"][str(index)], config, seen, memory, memory_seen)
    return layer_norm(x, parameters["final_norm"], config.epsilon) if config.final_norm else x


# region masks
def visible(heads, targets, real, causal=False):
    """Masks per head, t by s: real tokens, and no later ones if causal."""
    shift = len(real) - targets
    rows = [
        [there and not (causal and s > t + shift) for s, there in enumerate(real)]
        for t in range(targets)
    ]
    return [rows] * heads


# region whole
def sinusoidal(position, width):
    angles = [position * 10000.0 ** (-2 * (column // 2) / width) for column in range(width)]
    return [
        math.cos(angle) if column % 2 else math.sin(angle) for column, angle in enumerate(angles)
    ]


def positions(real, start):
    """Positions from the row's first token, or from its first real token."""
    first = 0 if start == "row" else real.index(True) if True in real else len(real)
    return [max(index - first, 0) for index in range(len(real))]


def embed(tokens, real, parameters, config, side):
    shared = side == "target" and config.share_embeddings and config.encoder_layers
    table = parameters["source_embedding" if shared else f"{side}_embedding"]["table"]
    factor = math.sqrt(config.model_width) if config.scale_embedding else 1.0
    rows = [
        table[token] if isinstance(token, int) else affine([token], table)[0] for token in tokens
    ]
    numbers = positions(real, config.position_start)
    if config.positions == "learned":
        learned = parameters[f"{side}_position_embedding"]["table"]
        added = [learned[number + config.position_offset] for number in numbers]
    else:
        added = [sinusoidal(number, config.model_width) for number in numbers]
    x = add([[number * factor for number in row] for row in rows], added)
    return (
        layer_norm(x, parameters[f"{side}_embedding_norm"], config.epsilon)
        if config.embedding_norm
        else x
    )


def transformer(parameters, config, target, target_real, source=None, source_real=None):
    memory = memory_seen = None
    if source is not None:
        x = embed(source, source_real, parameters, config, "source")
        memory = stack(
            x, parameters["encoder"], config, visible(config.heads, len(source), source_real)
        )
        memory_seen = visible(config.heads, len(target), source_real)
    x = embed(target, target_real, parameters, config, "target")
    seen = visible(config.heads, len(target), target_real, causal=True)
    x = stack(x, parameters["decoder"], config, seen, memory, memory_seen)
    head = parameters.get("logits", {})
    if not config.tie_logits:
        return affine(x, head["kernel"], head.get("bias"))
    side = "source" if config.share_embeddings and config.encoder_layers else "target"
    return affine(x, list(zip(*parameters[f"{side}_embedding"]["table"])), head.get("bias"))
