"""Bytes that a device exchanges in a training step, by collective.

The payload of a collective is the larger of what a device gives and what it gets: an all-gather's output, a reduce-scatter's input, the
tensor of an all-reduce. A ring sends and receives (n - 1)/n of it in a group of n devices, twice that for an all-reduce.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from reference_numpy import parameters
from reference_numpy.sharding import Mesh

from .step import Parameter, Step

GATHER, SCATTER, REDUCE = "all-gather", "reduce-scatter", "all-reduce"
DATA, MODEL, BOTH = "data", "model", "data and model"


class Collective(NamedTuple):
    """One kind of collective for one purpose. axis: whose devices exchange. payload: bytes of a device and a step."""

    kind: str
    axis: str
    purpose: str
    payload: int

    def wire(self, mesh: Mesh) -> float:
        """Returns the bytes that a device sends by a ring."""
        size = mesh.devices if self.axis == BOTH else mesh.sizes[self.axis]
        return self.payload * (size - 1) / size * (2 if self.kind == REDUCE else 1)


def traffic(step: Step) -> list[Collective]:
    """Returns the collectives of a training step, by axis and purpose; none of zero bytes."""
    each = [*step.parameters()]
    found = [*_over_data(step, each), *_over_model(step, each), *_of_scalars(step)]
    return [collective for collective in found if collective.payload]


def total(step: Step, axis: str = "") -> int:
    """Returns the payload of all collectives, or of those over an axis."""
    return sum(collective.payload for collective in traffic(step) if axis in ("", collective.axis))


def _over_data(step: Step, each: Iterable[Parameter]) -> Iterator[Collective]:
    """Full sharding gathers a parameter before the forward pass and before the backward pass, and scatters its gradient; of one that lies
    whole, the gradient is reduced. Each is the part of a model column, and of a microbatch.
    """
    if step.mesh.data == 1:
        return
    split, whole = 0, 0
    for parameter in each:
        payload = parameter.numbers(step.mesh, MODEL) * step.item * step.recipe.microbatches
        split, whole = (split + payload, whole) if parameter.letter(DATA) else (split, whole + payload)
    yield Collective(GATHER, DATA, "parameters, forward", split)
    yield Collective(GATHER, DATA, "parameters, backward", split)
    yield Collective(SCATTER, DATA, "gradients", split)
    yield Collective(REDUCE, DATA, "gradients of whole parameters", whole)


def _over_model(step: Step, each: list[Parameter]) -> Iterator[Collective]:
    """What `model` splits is added up: the output of a kernel that is split along its input (heads, feed-forward), and of a table along
    its vocabulary; in the backward pass, the gradient of an input whose kernels are split along their outputs.
    """
    if step.mesh.model == 1:
        return
    width = step.config.model_width
    forward, embedded, backward = Counter[str](), Counter[str](), dict[tuple[str, str], int]()
    tied = {table for name, table in parameters.ties(step.config).items() if name.endswith("logits.kernel")}
    for parameter in each:
        side, letter = _side(parameter), parameter.letter(MODEL)
        if parameter.name.endswith(".table") and letter:
            for of in _sides_of(step, parameter):
                embedded[of] = step.tokens(of) * width
        elif letter and parameter.letters[-1] == "d":
            forward[parameter.part] = step.tokens(side) * width
        elif parameter.letters[0] == "d" and parameter.name.endswith(".kernel") and (letter or _of_own_heads(step, parameter)):
            backward[parameter.part, side] = step.tokens(side) * width
        if parameter.name in tied and letter:
            backward["logits", "target"] = step.tokens("target") * width
    payload = step.item * step.recipe.microbatches
    yield Collective(REDUCE, MODEL, "activations, forward", sum(forward.values()) * payload)
    yield Collective(REDUCE, MODEL, "activations, computed again", sum(_again(step, forward)) * payload)
    yield Collective(REDUCE, MODEL, "activations, backward", sum(backward.values()) * payload)
    yield Collective(REDUCE, MODEL, "embedding", sum(embedded.values()) * payload)
    yield Collective(REDUCE, MODEL, "loss", _loss(step, each) * payload)
    yield Collective(REDUCE, MODEL, "norm of queries and keys", _norms(step, each) * payload)
    of_whole = sum(parameter.numbers(step.mesh, DATA) for parameter in each if _of_own_heads(step, parameter))
    yield Collective(REDUCE, MODEL, "gradients of whole parameters", of_whole * payload)


def _of_scalars(step: Step) -> Iterator[Collective]:
    """The loss of all rows, and the norm of all gradients."""
    if step.mesh.data > 1:
        yield Collective(REDUCE, DATA, "loss", step.item * step.recipe.microbatches)
    if step.recipe.clip_norm is not None and step.mesh.devices > 1:
        sharded = step.mesh.data > 1 and not step.mesh.replicate
        axis = BOTH if sharded and step.mesh.model > 1 else DATA if sharded else MODEL
        if axis != MODEL or step.mesh.model > 1:
            yield Collective(REDUCE, axis, "norm of the gradients", step.item)


def _side(parameter: Parameter) -> str:
    """Returns whether a parameter's input are tokens of the source or of the target."""
    field = parameter.projection.rpartition(".")[2]
    of_memory = parameter.part.endswith(".cross_attention") and field in ("key", "value")
    return "source" if of_memory or parameter.name.startswith(("encoder.", "source_", "pooler.", "classifier.")) else "target"


def _sides_of(step: Step, table: Parameter) -> set[str]:
    """Returns the sides whose tokens look up their rows in this table."""
    stored = {name for name, at in parameters.ties(step.config).items() if at == table.name and name.endswith("embedding.table")}
    return {"source" if name.startswith("source") else "target" for name in stored | {table.name}}


def _of_own_heads(step: Step, parameter: Parameter) -> bool:
    """Whether a parameter lies whole in a model column that uses it for its own heads alone, so that its gradient is a share: keys and
    values of fewer groups than columns, and norms of heads.
    """
    field = parameter.projection.rpartition(".")[2]
    of_heads = field in ("key", "value", "query_norm", "key_norm") and parameter.part.endswith("attention")
    return step.mesh.model > 1 and of_heads and not parameter.letter(MODEL)


def _again(step: Step, forward: Counter[str]) -> Iterator[int]:
    """Yields what recomputation adds up again: all of a layer but, where nothing is normalised behind it, its last sum."""
    if step.recompute:
        last = "feed_forward" if step.config.norm_placement == "pre" else ""
        yield from (numbers for part, numbers in forward.items() if ".layers." in part and part.rpartition(".")[2] != last)


def _loss(step: Step, each: Iterable[Parameter]) -> int:
    """Returns the numbers of a loss over parts of the vocabulary: of each token the largest logit, the sum of exponentials, the label's
    logit and, with smoothing, the sum of logits.
    """
    stored = parameters.ties(step.config).get("logits.kernel", "logits.kernel")
    split = any(parameter.letter(MODEL) == "v" for parameter in each if parameter.name == stored)
    return step.tokens("target") * (4 if step.recipe.smoothing else 3) if split else 0


def _norms(step: Step, each: Iterable[Parameter]) -> int:
    """Returns the numbers of norms over all heads (`query_key_norm` width) of which a column has some: of each token the sums of the
    forward pass and those of the backward pass, of which a layer norm has two each.
    """
    sums = 2 * (2 if step.config.norm == "layer" else 1)
    norms = {parameter.projection: _side(parameter) for parameter in each if parameter.letters[0] in "hg" and parameter.letter(MODEL)
             and parameter.projection.endswith("_norm")}  # fmt: skip
    return sum(sums * step.tokens(side) for side in norms.values())


def payloads(collectives: Iterable[Collective]) -> dict[tuple[str, str], int]:
    """Returns the payload of each kind and axis."""
    found = Counter[tuple[str, str]]()
    for collective in collectives:
        found[collective.kind, collective.axis] += collective.payload
    return dict(found)


def by_ring(step: Step) -> int:
    """Returns the bytes that a device sends in a step, by rings."""
    return math.ceil(sum(collective.wire(step.mesh) for collective in traffic(step)))
