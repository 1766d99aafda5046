"""Bytes that a training step needs on the fullest device."""

from collections import Counter

from .step import Step

STATE = ("parameters", "gradients", "moments")  # persist between the passes


def memory(step: Step) -> dict[str, int]:
    """Returns the bytes by purpose.

    parameters, gradients, moments: the device's part; Adam has two moments. If gradients are summed
    after the last microbatch, they are whole along data until then. gathered: what full sharding
    gathers at a time: parameters outside of layers with their gradients, two layers (one running,
    one arriving) and the gradients of one layer. activations: the inputs of the backward pass for
    one microbatch; with recomputation, the input of each layer, and one layer. logits: with their
    gradient.
    """
    config, engine, each = step.config, step.engine, [*step.parameters()]
    own = sum(map(step.own, each))
    layers = Counter[str]()
    for parameter in each:
        layers[parameter.layer] += step.gathered(parameter) * step.is_split(parameter)
    outside = layers.pop("", 0)
    at_work = max(layers.values(), default=0)
    kept = sum(map(step.gathered, each)) if step.recipe.microbatches > 1 and engine.sums_at_end else own
    vocabulary = -(-config.target_vocabulary // step.mesh.model) if config.decoder_layers else 0
    numbers = {
        "parameters": own,
        "gradients": kept,
        "moments": 2 * own,
        "gathered": 2 * outside + 3 * at_work,
        "activations": 0,
        "logits": 2 * step.tokens("target") * vocabulary,
    }
    return {what: count * step.item for what, count in numbers.items()} | {"activations": activations(step)}


def activations(step: Step) -> int:
    """Returns the bytes of the activations in all layers and around them."""
    config = step.config
    counts = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    crossed = attention(step, "target", "source") if config.cross_attention else 0
    of = [attention(step, "source", "source") + network(step, "source", layer) for layer in range(counts["encoder"])]
    of += [attention(step, "target", "target") + crossed + network(step, "target", layer) for layer in range(counts["decoder"])]
    rows = {stack: step.tokens(side) * config.model_width for stack, side in (("encoder", "source"), ("decoder", "target"))}
    around = sum(
        rows[stack] * (step.item * (config.embedding_norm + config.final_norm + 1) + (config.dropout_rate > 0))
        for stack, count in counts.items()
        if count
    )
    if step.recompute:
        inputs = sum(rows[stack] * step.item * count for stack, count in counts.items())
        return around + inputs + max(of)
    return around + sum(of)


def _residual(step: Step, side: str, second: bool = False) -> int:
    """Returns the bytes of a sub-layer's input, norm inputs and dropout mask in each column.

    second: whether this is the feed-forward, which shares them with the attention in a parallel
    block.
    """
    config = step.config
    kept = 3 if config.norm_placement == "sandwich" else 2
    if second and config.parallel:
        kept = 0 if config.norm_placement == "parallel_shared" else 1
    return step.tokens(side) * config.model_width * (step.item * kept + (config.dropout_rate > 0))


def attention(step: Step, query: str, memory: str) -> int:
    """Returns the bytes of an attention's queries, keys, values, output and norm inputs.

    A fused kernel also keeps the logarithm of a sum per head and query. If none can run, the
    weights are kept: with dropout also the dropped weights and the mask, with a cap also the
    logits.
    """
    config, model = step.config, step.mesh.model
    heads = config.heads // model
    groups = config.key_value_heads // (model if config.key_value_heads % model == 0 else 1)
    clipped = int(config.query_key_value_clip is not None)  # the input of the clip is kept, too
    normed = {"none": 1, "each_head": 3}.get(config.query_key_norm, 2) + clipped
    of_query = heads * (normed * config.key_size + config.value_size)
    of_memory = groups * (normed * config.key_size + (1 + clipped) * config.value_size)
    projected = step.tokens(query) * of_query + step.tokens(memory) * of_memory
    scores = step.tokens(query) * heads * int(getattr(step, memory))
    dropped, capped = config.attention_dropout_rate > 0, config.score_cap is not None
    held = scores * (1 + dropped + capped) if dropped or capped else step.tokens(query) * heads
    return step.item * (projected + held) + scores * dropped + _residual(step, query)


def network(step: Step, side: str, layer: int) -> int:
    """Returns the bytes of the activations of a layer's feed-forward or mixture of experts."""
    return (mixture_of_experts if step.config.has_experts(layer) else feed_forward)(step, side)


def feed_forward(step: Step, side: str) -> int:
    """Returns the bytes of a feed-forward's activations."""
    width = step.config.feed_forward_width // step.mesh.model
    return _hidden(step, step.tokens(side) * width, step.config.hidden_dropout_rate > 0) + _residual(step, side, second=True)


def mixture_of_experts(step: Step, side: str) -> int:
    """Returns the bytes of the activations of a mixture of experts.

    A pair of a token and a chosen expert has its input, hidden layer and output. A device has the
    pairs of its experts; a token may choose only these. The router keeps its scores and weights.
    """
    config, tokens, model = step.config, step.tokens(side), step.mesh.model
    pairs = tokens * min(config.experts_per_token, config.experts // model)
    gated = tokens * config.model_width * config.shared_gate
    shared = _hidden(step, tokens * (config.shared_width // model), False) + step.item * gated
    of_pairs = _hidden(step, pairs * config.expert_width, False) + step.item * 2 * pairs * config.model_width
    return of_pairs + shared + step.item * 2 * tokens * config.experts + _residual(step, side, second=True)


def _hidden(step: Step, count: int, dropped: bool) -> int:
    """Returns the bytes of that many numbers of a hidden layer.

    These are the hidden layer before and after its activation (ReLU needs only the latter); if
    gated, also the hidden layer that the gate multiplies, and the product; with a limit, both before
    they are clipped; and a dropout mask.
    """
    config = step.config
    hidden = 2 - (config.activation == "relu" and not dropped) + 2 * config.gated_feed_forward
    hidden += 2 * (config.gate_limit is not None)
    return count * (step.item * hidden + dropped)
