"""Bytes that a device exchanges in a training step, by collective.

The payload of a collective is the larger of its input and output on a device: an all-gather's
output, a reduce-scatter's input, an all-reduce's tensor. In a ring of n devices, each sends and
receives (n - 1)/n of it, twice that for an all-reduce.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from reference_numpy import parameters
from reference_numpy.sharding import Mesh

from .step import DATA, MODEL, Parameter, Step

GATHER, SCATTER, REDUCE = "all-gather", "reduce-scatter", "all-reduce"
BOTH = "data and model"
MARK = 4  # bytes that tell whether a parameter has a gradient


class Collective(NamedTuple):
    """A kind of collective for one purpose, over an axis. payload: bytes per device and step."""

    kind: str
    axis: str
    purpose: str
    payload: int

    def wire(self, mesh: Mesh) -> float:
        """Returns the bytes that a device sends in a ring."""
        size = mesh.devices if self.axis == BOTH else mesh.sizes[self.axis]
        return self.payload * (size - 1) / size * (2 if self.kind == REDUCE else 1)


def traffic(step: Step) -> list[Collective]:
    """Returns the collectives of a training step by axis and purpose, without empty ones."""
    each = [*step.parameters()]
    found = [*_over_data(step, each), *_over_model(step, each), *_of_scalars(step)]
    return [collective for collective in found if collective.payload]


def total(step: Step, axis: str = "") -> int:
    """Returns the payload of all collectives, or of those over an axis."""
    return sum(collective.payload for collective in traffic(step) if axis in ("", collective.axis))


def _over_data(step: Step, each: list[Parameter]) -> Iterator[Collective]:
    """Yields the traffic of full sharding and data parallelism, for one model column.

    Full sharding gathers a parameter before its layer runs, forward and backward (outside of
    layers: once), and scatters its gradient. The gradients of whole parameters are reduced.
    """
    if step.mesh.data == 1:
        return
    forward, backward, sums, names = 0, 0, Counter[bool](), parameters.ties(step.config)
    for parameter in each:
        payload, split = step.gathered(parameter) * step.item, step.is_split(parameter)
        forward += payload * split
        backward += payload * (split and _is_read_again(step, parameter))
        # a step reads a parameter once, plus once for each tied name
        if parameter.name.endswith(".selection_bias"):
            continue  # has no gradient
        sums[split] += payload * (1 + [*names.values()].count(parameter.name) if step.engine.each_use else 1)
    parts = step.recipe.microbatches
    at_end = step.engine.sums_at_end
    yield Collective(GATHER, DATA, "parameters, forward", forward * parts)
    yield Collective(GATHER, DATA, "parameters, backward", backward * parts)
    yield Collective(SCATTER, DATA, "gradients", sums[True] * (1 if at_end else parts))
    yield Collective(REDUCE, DATA, "gradients of whole parameters", sums[False] * (1 if at_end else parts))
    if step.engine.asks_for_each and step.mesh.replicate and step.mesh.model == 1:
        yield Collective(REDUCE, DATA, "which have a gradient", MARK * (len(each) + 1))


def _is_read_again(step: Step, parameter: Parameter) -> bool:
    """Whether the backward pass gathers a parameter again: in layers, unless it is skipped."""
    if not parameter.layer or not step.engine.skips_added or not parameter.name.endswith((".bias", ".offset")):
        return bool(parameter.layer)
    last = {"post": ".feed_forward_norm.offset", "after": ".feed_forward_norm.offset", "sandwich": ".feed_forward_output_norm.offset"}
    return step.recompute and not parameter.name.endswith(last.get(step.config.norm_placement, ".feed_forward.output.bias"))


def _over_model(step: Step, each: list[Parameter]) -> Iterator[Collective]:
    """Yields the sums over `model`.

    Forward, these are the outputs of kernels split along their input (heads, feed-forward) and of
    tables split along the vocabulary; backward, the gradients of the inputs of kernels split along
    their outputs, and of experts, whose weights' gradients are gathered.
    """
    if step.mesh.model == 1:
        return
    payload, width = step.item * step.recipe.microbatches, step.config.model_width
    inputs = {(parameter.projection if step.engine.each_use else parameter.part, _side(parameter)) for parameter in each
              if parameter.letters[0] == "d" and parameter.name.endswith(".kernel")
              and (parameter.letter(MODEL)
                   or (_of_own_heads(step, parameter) and not step.engine.each_use))}  # fmt: skip
    experts = {(parameter.part, _side(parameter)) for parameter in each if parameter.name.endswith(".experts.output.kernel")}
    inputs |= experts
    tied = parameters.ties(step.config).get("logits.kernel")
    split = any(parameter.name == tied and parameter.letter(MODEL) for parameter in each)
    backward = sum(step.tokens(side) for _, side in inputs) + step.tokens("target") * split
    outputs = {parameter.part: step.tokens(_side(parameter)) for parameter in each
               if parameter.letter(MODEL) and parameter.letters[-1] == "d" and parameter.name.endswith(".kernel")}  # fmt: skip
    embedded = sum(step.tokens(side) for parameter in each if parameter.name.endswith(".table") and parameter.letter(MODEL)
                   for side in _looked_up(step, parameter))  # fmt: skip
    yield Collective(REDUCE, MODEL, "activations, forward", sum(outputs.values()) * width * payload)
    yield Collective(REDUCE, MODEL, "activations, computed again", sum(_again(step, outputs)) * width * payload)
    yield Collective(REDUCE, MODEL, "activations, backward", backward * width * payload)
    weights = sum(step.tokens(side) for _, side in experts) * step.config.experts
    yield Collective(GATHER, MODEL, "gradients of the experts' weights", weights * payload)
    yield Collective(REDUCE, MODEL, "embedding", embedded * width * payload)
    yield Collective(REDUCE, MODEL, "loss", _loss(step, each) * payload)
    yield Collective(REDUCE, MODEL, "norm of queries and keys", _norms(step, each) * payload)
    yield from _of_own_groups(step, [parameter for parameter in each if _of_own_heads(step, parameter)])


def _of_own_groups(step: Step, each: list[Parameter]) -> Iterator[Collective]:
    """Yields the gradients of keys and values with fewer groups than columns.

    An engine with `each_use` sums the gradients of each group's keys and values over the columns
    that share it, and gathers them and the gradients of their parameters.
    """
    payload = step.item * step.recipe.microbatches
    groups = [parameter for parameter in each if "g" in parameter.letters and parameter.name.endswith(".kernel")]
    if not step.engine.each_use or not groups:
        whole = sum(map(step.gathered, each)) * (step.item if step.engine.sums_at_end else payload)
        yield Collective(REDUCE, MODEL, "gradients of whole parameters", whole)
        return
    tokens = sum(step.tokens(_side(parameter)) * math.prod(parameter.shape[2:]) for parameter in groups)
    yield Collective(REDUCE, MODEL, "gradients of keys and values", tokens * payload)
    if step.config.key_value_heads > 1:
        yield Collective(GATHER, MODEL, "gradients of keys and values", tokens * step.config.key_value_heads * payload)
        yield Collective(GATHER, MODEL, "gradients of whole parameters", sum(map(step.gathered, groups)) * payload)
    rest = sum(step.gathered(parameter) for parameter in each if parameter not in groups)
    yield Collective(REDUCE, MODEL, "gradients of whole parameters", rest * payload)


def _of_scalars(step: Step) -> Iterator[Collective]:
    """Yields the loss of all rows, and the norm of all gradients."""
    if step.mesh.data > 1:
        yield Collective(REDUCE, DATA, "loss", step.item * (1 if step.engine.sums_at_end else step.recipe.microbatches))
    if step.recipe.clip_norm is not None and step.mesh.devices > 1:
        sharded = step.mesh.data > 1 and not step.mesh.replicate
        axis = BOTH if sharded and step.mesh.model > 1 else DATA if sharded else MODEL
        if axis != MODEL or step.mesh.model > 1:
            yield Collective(REDUCE, axis, "norm of the gradients", step.item)


def _side(parameter: Parameter) -> str:
    """Returns the side, source or target, whose tokens a parameter reads."""
    field = parameter.projection.rpartition(".")[2]
    of_memory = parameter.part.endswith(".cross_attention") and field in ("key", "value")
    return "source" if of_memory or parameter.name.startswith(("encoder.", "source_", "pooler.", "classifier.")) else "target"


def _looked_up(step: Step, table: Parameter) -> set[str]:
    """Returns the sides whose tokens look up rows in this table."""
    stored = {name for name, at in parameters.ties(step.config).items() if at == table.name and name.endswith("embedding.table")}
    return {"source" if name.startswith("source") else "target" for name in stored | {table.name}}


def _of_own_heads(step: Step, parameter: Parameter) -> bool:
    """Whether a parameter is whole in each column but used only for the column's heads.

    Its gradient is then a share. These are keys and values with fewer groups than columns, and
    norms of heads.
    """
    field = parameter.projection.rpartition(".")[2]
    of_heads = field in ("key", "value", "query_norm", "key_norm") and parameter.part.endswith("attention")
    return step.mesh.model > 1 and of_heads and not parameter.letter(MODEL)


def _again(step: Step, outputs: Mapping[str, int]) -> Iterator[int]:
    """Yields the tokens whose sums recomputation repeats, mostly all but the last of a layer."""
    if step.recompute:
        needed = not (step.config.norm_placement == "pre" or step.config.parallel) or (
            step.engine.repeats_dropped and step.config.dropout_rate > 0
        )
        last = "" if needed else "feed_forward"
        yield from (tokens for part, tokens in outputs.items() if ".layers." in part and part.rpartition(".")[2] != last)


def _loss(step: Step, each: Iterable[Parameter]) -> int:
    """Returns the size of the sums of a loss over a split vocabulary.

    Per token: the largest logit, the sum of exponentials, the label's logit and, with
    smoothing, the sum of logits.
    """
    stored = parameters.ties(step.config).get("logits.kernel", "logits.kernel")
    split = any(parameter.letter(MODEL) == "v" for parameter in each if parameter.name == stored)
    return step.tokens("target") * (4 if step.recipe.smoothing else 3) if split else 0


def _norms(step: Step, each: Iterable[Parameter]) -> int:
    """Returns the size of the sums of norms over all heads (`query_key_norm` width) in a column.

    Each token has sums in the forward pass, again when recomputed, and in the backward pass; a
    layer norm has two each.
    """
    sums = (2 + step.recompute) * (2 if step.config.norm == "layer" else 1)
    norms = {parameter.projection: _side(parameter) for parameter in each if parameter.letters[0] in "hg" and parameter.letter(MODEL)
             and parameter.projection.endswith("_norm")}  # fmt: skip
    return sum(sums * step.tokens(side) for side in norms.values())


def by_ring(step: Step) -> int:
    """Returns the bytes that a device sends in a step, in rings."""
    return math.ceil(sum(collective.wire(step.mesh) for collective in traffic(step)))
