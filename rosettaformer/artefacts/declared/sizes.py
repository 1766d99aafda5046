"""Sizes of a config that the shapes of an artefact's tensors show."""

import math
from collections.abc import Iterator

from .evidence import Evidence, Finding

_MULTIPLES = (8, 16, 32, 64, 128, 256, 512, 1024)  # to which exporters lengthen a table
_FLOATS = {"float", "float32", "float64", "double", "float16", "bfloat16", "f32", "f64", "f16", "bf16"}


def findings(evidence: Evidence) -> Iterator[Finding]:
    """Yields the sizes that no tensor has."""
    config, constants = evidence.config, evidence.constants
    shapes = [weight.shape for weight in constants.weights.values() if len(weight.shape) > 1]
    plain = all(weight.dtype in _FLOATS for weight in constants.weights.values() if math.prod(weight.shape) > 4096)
    sides = {side for shape in shapes for side in shape}
    if not any(config.model_width in shape for shape in shapes):
        return  # the weights are not in the graph, or the width is another: then nothing else can be told apart
    for field, rows in _tables(evidence):
        if not sides & {rows, *(math.ceil(rows / multiple) * multiple for multiple in _MULTIPLES)}:
            yield evidence.finding(field, str(rows), [f"tensor with a side of {rows}"])
    if not plain or constants.opaque:
        return
    width, hidden = config.model_width, config.feed_forward_width
    if not sides & {hidden, 2 * hidden}:
        yield evidence.finding("feed_forward_width", str(hidden), [f"tensor with a side of {hidden} or {2 * hidden}"])
    else:
        yield from _layers(evidence, [shape for shape in shapes if {width, hidden} <= {*shape} or {width, 2 * hidden} <= {*shape}])
    yield from _heads(evidence, sides)


def _tables(evidence: Evidence) -> Iterator[tuple[str, int]]:
    """Yields the sizes of tables of embeddings."""
    config = evidence.config
    if config.encoder_layers:
        yield "source_vocabulary", config.source_vocabulary
    if config.decoder_layers and (not config.encoder_layers or config.target_vocabulary != config.source_vocabulary):
        yield "target_vocabulary", config.target_vocabulary
    if config.positions == "learned" and evidence.constants.longest is None:
        yield "max_positions", config.max_positions + config.position_offset


def _layers(evidence: Evidence, shapes: list[tuple[int, ...]]) -> Iterator[Finding]:
    """Counts the kernels of the feed-forward, where each is a matrix of its own."""
    config = evidence.config
    width, hidden, layers = config.model_width, config.feed_forward_width, config.encoder_layers + config.decoder_layers
    others = {config.source_vocabulary, config.target_vocabulary, config.heads * config.key_size, config.max_positions}
    if len({width, hidden, 2 * hidden}) < 3 or {hidden, 2 * hidden, width} & others or any(len(shape) > 2 for shape in shapes):
        return
    single = sum(hidden in shape for shape in shapes)
    double = len(shapes) - single
    usual = {(3 * layers, 0), (layers, layers)} if config.gated_feed_forward else {(2 * layers, 0)}
    if (single, double) not in usual:
        field = "decoder_layers" if config.decoder_layers else "encoder_layers"
        matrices = f"{3 if config.gated_feed_forward else 2} matrices of {width} and {hidden} for each layer; it holds {len(shapes)}"
        yield evidence.finding(field, str(layers), [matrices])


def _heads(evidence: Evidence, sides: set[int]) -> Iterator[Finding]:
    """Looks for the widths of queries and keys, alone or side by side."""
    config = evidence.config
    heads, groups, size = config.heads, config.key_value_heads, config.key_size
    fused = (heads + 2 * groups) * size
    parted = any({heads, size} <= {*weight.shape} for weight in evidence.constants.weights.values())
    if not parted and not sides & {heads * size, fused}:
        yield evidence.finding("heads", str(heads), [f"tensor with a side of {heads * size} or {fused}"])
    elif not parted and not evidence.holds(size) and not evidence.holds(heads):
        yield evidence.finding("heads", str(heads), [heads, f"{size} for the size of a head"])
    elif groups != heads and not sides & {groups * size, fused, 2 * groups * size}:
        if not any({groups, size} <= {*weight.shape} for weight in evidence.constants.weights.values()):
            yield evidence.finding("key_value_heads", str(groups), [f"tensor with a side of {groups * size} or {fused}"])
