"""Sizes of a config that the shapes of an artefact's tensors show."""

import math
from collections.abc import Iterator

from .evidence import Evidence, Finding

_MULTIPLES = (8, 16, 32, 64, 128, 256, 512, 1024)  # to which exporters lengthen a table
_FLOATS = {"float", "float32", "float64", "double", "float16", "bfloat16", "f32", "f64", "f16", "bf16"}


def findings(evidence: Evidence) -> Iterator[Finding]:
    """Yields the sizes that no tensor has."""
    config, constants = evidence.config, evidence.constants
    shapes = [weight.shape for weight in constants.weights.values()]
    sides = evidence.sides
    width, hidden, tables = config.model_width, config.feed_forward_width, dict(_tables(evidence))
    missing = [field for field, rows in tables.items() if not sides & {rows, *(math.ceil(rows / by) * by for by in _MULTIPLES)}]
    if width not in sides:
        if tables and not missing:  # otherwise the weights are not in the graph
            yield evidence.finding("model_width", str(width), [f"tensor with a side of {width}"])
        return
    for field in missing:
        yield evidence.finding(field, str(tables[field]), [f"tensor with a side of {tables[field]}"])
    if constants.opaque or not all(weight.dtype in _FLOATS for weight in constants.weights.values() if math.prod(weight.shape) > 4096):
        return
    if not sides & {hidden, 2 * hidden}:
        yield evidence.finding("feed_forward_width", str(hidden), [f"tensor with a side of {hidden} or {2 * hidden}"])
    else:
        yield from _layers(evidence, [shape for shape in shapes if {width, hidden} <= {*shape} or {width, 2 * hidden} <= {*shape}])
    yield from _heads(evidence)


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
    others = {
        width,
        config.source_vocabulary,
        config.target_vocabulary,
        config.heads * config.key_size,
        config.max_positions,
        config.segments,
    }
    if {hidden, 2 * hidden} & others or 2 * hidden == width or any(len(shape) > 2 for shape in shapes):
        return
    single, each = sum(hidden in shape for shape in shapes), 3 if config.gated_feed_forward else 2
    double = len(shapes) - single
    usual = {(3 * layers, 0), (layers, layers)} if config.gated_feed_forward else {(2 * layers, 0)}
    if (single, double) not in usual:
        field = "decoder_layers" if config.decoder_layers else "encoder_layers"
        yield evidence.finding(field, str(layers), [f"{each * layers} matrices of {width} and {hidden}"], holds=f"{len(shapes)}")


def _heads(evidence: Evidence) -> Iterator[Finding]:
    """Looks for the widths of queries and keys, alone or side by side, and for the size of a head."""
    config = evidence.config
    heads, groups, size = config.heads, config.key_value_heads, config.key_size
    fused = (heads + 2 * groups) * size
    shapes = [{*weight.shape} for weight in evidence.constants.weights.values()]
    sides = evidence.sides
    if not evidence.whole(size) and evidence.named("key_size"):
        yield evidence.finding("key_size", str(size), [f"{size} for the size of a head"])
    elif not evidence.whole(size):
        yield evidence.finding("heads", str(heads), [f"{size} for the size of a head"])
    elif not any({heads, size} <= shape for shape in shapes) and not sides & {heads * size, fused}:
        yield evidence.finding("heads", str(heads), [f"tensor with a side of {heads * size}, {heads} of {size}, or {fused}"])
    elif groups != heads and not any({groups, size} <= shape for shape in shapes):
        wanted = {groups * size, fused, 2 * groups * size} - {heads * size}
        looked = f"tensor with a side of {groups * size}, {groups} of {size}, or {fused}"
        yield from [] if sides & wanted else [evidence.finding("key_value_heads", str(groups), [looked])]
