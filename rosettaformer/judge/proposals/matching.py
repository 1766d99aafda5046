"""Matches a module's parameters with the reference's, by name and shape."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .tensors import Leaf, layouts
from .vocabulary import ATTENTION, DOWNS, FUSED, GATES, OFFSETS, role_of, tokens, within

# a kernel shared by all heads: its axes, and the output axes
_OF_ALL_HEADS = {"query": ("i k", "k"), "key": ("i k", "k"), "value": ("i e", "e")}


@dataclass(frozen=True)
class Row:
    """A canonical parameter's tensor: its native name and possible axes, likeliest first."""

    name: str
    native: str
    axes: tuple[str, ...]

    @property
    def role(self) -> str:
        """The projection it belongs to: `query` for `query.kernel`."""
        return self.name.partition(".")[0]


@dataclass
class Part:
    """A component of the model: its kind, canonical path and native submodule."""

    component: str
    path: str
    native: str
    rows: list[Row] = field(default_factory=list)
    parts: list["Part"] = field(default_factory=list)
    ordered: list[str] = field(default_factory=list)  # names that were assigned only by declaration order

    def add(self, component: str, path: str, native: str) -> "Part":
        """Adds a part to this one and returns it."""
        self.parts.append(Part(component, path, native))
        return self.parts[-1]

    def within(self) -> Iterator["Part"]:
        """Yields this part and all parts inside it."""
        yield self
        for part in self.parts:
            yield from part.within()

    def named(self, prefix: str = "") -> Iterator[tuple[str, Row]]:
        """Yields the full canonical name and row of every parameter inside."""
        for row in self.rows:
            yield prefix + row.name, row
        for part in self.parts:
            yield from part.named(f"{prefix}{part.path}.")

    @property
    def crosses(self) -> bool:
        """Whether it contains cross-attention."""
        return any(part.path == "cross_attention" for part in self.within())


class Matching:
    """The parameters of a module, and how they have been matched so far.

    root: the whole component. left: unmatched parameters. sizes: of every letter; `v` and `w` are
    the source's and target's vocabulary, `i` a head's slice of the width. shown: config fields
    revealed by the tensors. unpaired: output biases of attentions without other biases, which the
    reference does not have.
    """

    def __init__(self, component: str, leaves: Sequence[Leaf], sizes: Mapping[str, int]) -> None:
        self.root, self.leaves, self.left, self.sizes = Part(component, "", ""), tuple(leaves), list(leaves), sizes
        self.shown: dict[str, Any] = {}
        self.unpaired: list[Leaf] = []

    def take(self, part: Part, name: str, leaf: Leaf, axes: str, outputs: str = "", which: tuple[int, int] = (0, 1), **sizes: int) -> None:
        """Makes the tensor, or part of it, a row. outputs: the output letters; all if ""."""
        asked = axes, outputs or axes, leaf.shape, {**self.sizes, **sizes}
        found = layouts(*asked, leaf.first, which) or layouts(*asked, "", which)  # the shape may contradict the class
        part.rows.append(Row(name, within(leaf.path, part.native), tuple(found)))
        if leaf in self.left:
            self.left.remove(leaf)

    def inside(self, native: str) -> list[Leaf]:
        """Returns the unmatched parameters in a submodule."""
        return [leaf for leaf in self.left if not native or leaf.path.startswith(f"{native}.")]

    def may_be(self, leaf: Leaf, axes: str, **sizes: int) -> bool:
        """Whether the tensor can have these axes, with inputs and outputs in either order."""
        letters = axes.split()
        return any(layouts(axes, " ".join(letters[cut:]), leaf.shape, {**self.sizes, **sizes}) for cut in range(1, len(letters)))

    def is_vector(self, leaf: Leaf, axes: str, **sizes: int) -> bool:
        sized = {**self.sizes, **sizes}
        return leaf.is_vector and math.prod(leaf.shape) == math.prod(sized[letter] for letter in axes.split())

    def projections(self, leaf: Leaf) -> int:
        """Returns the number of attention projections in a tensor; 0 if it is not a projection."""
        if sum(size != 1 for size in leaf.shape) < 2:
            return 0
        if self.serves_all_heads(leaf) or any(self.may_be(leaf, axes) for axes, _ in ATTENTION.values()):
            return 1
        if {role_of(leaf.path.rpartition(".")[2]), role_of(leaf.parent)} & {"query", "key", "value"}:
            return 0  # a tensor named after one projection holds no others
        return next((n for n in FUSED if layouts("d h k", "h k", leaf.shape, self.sizes, "", (0, n))), 0)

    def serves_all_heads(self, leaf: Leaf) -> bool:
        """Whether a kernel maps one head's slice of the width and serves all heads."""
        return self.sizes["h"] > 1 and leaf.shape in ((self.sizes["i"], self.sizes["k"]), (self.sizes["k"], self.sizes["i"]))

    def feeds(self, leaf: Leaf) -> bool:
        """Whether it is a kernel of a feed-forward network."""
        return sum(size != 1 for size in leaf.shape) == 2 and (self.may_be(leaf, "d f") or self.is_doubled(leaf))

    def is_doubled(self, leaf: Leaf) -> bool:
        """Whether one kernel holds both gate and hidden layer."""
        doubled = layouts("d f", "f", leaf.shape, self.sizes, "", (0, 2))
        return bool(doubled) and not self.may_be(leaf, "d f") and not self.projections(leaf)

    def bias(self, kernel: Leaf, outputs: str, count: int = 1, role: str = "") -> Leaf | None:
        """Returns a kernel's bias: in its module, with its outputs' shape and its name."""
        beside = [leaf for leaf in self.leaves if leaf.parent == kernel.parent]
        size = count * math.prod(self.sizes[letter] for letter in outputs.split())
        own = [leaf for leaf in beside if leaf in self.left and leaf is not kernel and math.prod(leaf.shape) == size]
        end = kernel.path.rpartition(".")[2]
        paired = [leaf for leaf in own if leaf.path.endswith((end.replace("weight", "bias"), end.replace("kernel", "bias")))]
        named = [leaf for leaf in own if role and role_of(leaf.path.rpartition(".")[2]) == role]
        alone = own if sum(leaf.shape != () and not leaf.is_vector for leaf in beside) <= 1 else []
        return next(iter(paired or named or alone), None)


def norm(work: Matching, part: Part) -> None:
    """Matches a layer norm or an RMS norm, which may lack the offset."""
    vectors = [leaf for leaf in work.inside(part.native) if work.is_vector(leaf, "d")]
    offsets = [leaf for leaf in vectors if set(tokens(within(leaf.path, part.native))) & OFFSETS]
    scales = [leaf for leaf in vectors if leaf not in offsets]
    if len(vectors) == 2 and len(scales) != 1:
        scales, offsets = vectors[:1], vectors[1:]
    for name, found in (("scale", scales), ("offset", offsets)):
        if len(found) == 1:
            work.take(part, name, found[0], "d")
    if vectors:
        work.shown.setdefault("norm_offset", bool(offsets))


def feed_forward(work: Matching, part: Part) -> None:
    """Matches two kernels, or three: the gate has its own kernel or shares the hidden layer's."""
    kernels = [leaf for leaf in work.inside(part.native) if work.feeds(leaf)]
    if len(kernels) not in (2, 3):
        return
    words = {leaf: {*tokens(steps := within(leaf.path, part.native)), *steps.split(".")} for leaf in kernels}
    doubled = [leaf for leaf in kernels if work.is_doubled(leaf)]
    fused, three = len(doubled) == 1 and len(kernels) == 2, len(kernels) == 3
    work.shown["gated_feed_forward"] = fused or three
    if fused:
        last = next(leaf for leaf in kernels if leaf is not doubled[0])
    elif three:
        last = next((leaf for leaf in kernels if words[leaf] & DOWNS), None) or _last(work, kernels)
    else:
        last = _last(work, kernels)
    first = [leaf for leaf in kernels if leaf is not last]
    named = [leaf for leaf in first if words[leaf] & GATES]
    if three and len(named) == 1:
        first.sort(key=lambda leaf: leaf is not named[0])
    elif fused or three:
        part.ordered += ["gate.kernel", "hidden.kernel"]
    held = [(first[0], ("gate", "hidden"))] if fused else [*zip(first, (("gate",), ("hidden",))[-len(first) :], strict=True)]
    for kernel, names in (*held, (last, ("output",))):
        axes, vector = ("f d", "d") if names == ("output",) else ("d f", "f")
        bias = work.bias(kernel, vector, len(names))
        work.shown.setdefault("feed_forward_bias", bool(bias))
        for index, name in enumerate(names):
            work.take(part, f"{name}.kernel", kernel, axes, vector, (index, len(names)))
            if bias:
                work.take(part, f"{name}.bias", bias, vector, "", (index, len(names)))


def _last(work: Matching, kernels: list[Leaf]) -> Leaf:
    """Returns the kernel with the layer's outputs: by its axes, otherwise by its place."""
    width = work.sizes["f"]
    hidden = [leaf for leaf in kernels if leaf.first and (leaf.first == "out") == (leaf.shape[0] == width)]
    return next(leaf for leaf in kernels if leaf not in (hidden if len(hidden) == len(kernels) - 1 else kernels[:-1]))


def attention(work: Matching, part: Part, among: Sequence[Leaf] | None = None) -> None:
    """Matches an attention's projections. among: its kernels, if a module holds others."""
    kernels = [leaf for leaf in (work.inside(part.native) if among is None else among) if work.projections(leaf)]
    for leaf, role, index, count in _roles(work, part, kernels):
        axes, outputs = _OF_ALL_HEADS[role] if work.serves_all_heads(leaf) else ATTENTION[role]
        work.take(part, f"{role}.kernel", leaf, axes, outputs, (index, count))
    for kernel in kernels:
        roles = [row.role for row in part.rows if row.native == within(kernel.path, part.native)]
        bias = work.bias(kernel, ATTENTION[roles[0]][1], len(roles), roles[0] if len(roles) == 1 else "") if roles else None
        if bias:
            for index, role in enumerate(roles):
                work.take(part, f"{role}.bias", bias, ATTENTION[role][1], "", (index, len(roles)))
    part.rows.sort(key=lambda row: ([*ATTENTION].index(row.role), row.name.endswith("bias")))
    biases = [row for row in part.rows if row.name.endswith("bias")]
    if [row.role for row in biases] == ["output"]:
        only = biases.pop()
        part.rows.remove(only)
        work.unpaired += [leaf for leaf in work.leaves if within(leaf.path, part.native) == only.native]
    if part.rows:
        work.shown.setdefault("attention_bias", bool(biases))
    _query_key_norms(work, part)


def _query_key_norms(work: Matching, part: Part) -> None:
    """Matches query and key norms: vectors named so, in modules without a kernel."""
    kernels = {leaf.parent for leaf in work.leaves if not leaf.is_vector}
    own = [leaf for leaf in work.inside(part.native) if leaf.parent not in {part.native, *kernels}]
    for role, heads in (("query", "h"), ("key", "g")):
        named = [leaf for leaf in own if role_of(within(leaf.path, part.native)) == role]
        for kind, axes in (("head", "k"), ("width", f"{heads} k")):
            found = [leaf for leaf in named if leaf in work.left and work.is_vector(leaf, axes)]
            if len(found) == 1 and work.shown.setdefault("query_key_norm", kind) == kind:
                work.take(part, f"{role}_norm.scale", found[0], axes)


def _roles(work: Matching, part: Part, kernels: Sequence[Leaf]) -> list[tuple[Leaf, str, int, int]]:
    """Returns an attention's projections: tensor, role, index of the part, number of parts."""
    counts = {leaf: work.projections(leaf) for leaf in kernels}
    found = [(leaf, role, index, n) for leaf, n in counts.items() if n > 1 for index, role in enumerate(FUSED[n])]
    single = [leaf for leaf, n in counts.items() if n == 1]
    missing = [role for role in ATTENTION if role not in {role for _, role, _, _ in found}]
    named = {leaf: role_of(within(leaf.path, part.native)) for leaf in single}
    values = [*named.values()]
    if sorted(values) != sorted(missing):
        spare = [role for role in missing if values.count(role) != 1]
        for leaf in single:
            if values.count(named[leaf]) != 1 or named[leaf] not in missing:
                named[leaf] = spare.pop(0) if spare else ""
        part.ordered += [f"{role}.kernel" for role in missing if values.count(role) != 1]
    return found + [(leaf, named[leaf], 0, 1) for leaf in single if named[leaf]]


def logits(work: Matching, part: Part, kernel: Leaf | None = None) -> None:
    """Matches the output head. kernel: its kernel, if known."""
    size = work.sizes["w"]
    kernel = kernel or next((leaf for leaf in work.inside(part.native) if work.may_be(leaf, "d v", v=size)), None)
    if kernel is None:
        return
    work.take(part, "kernel", kernel, "d v", "v", v=size)
    biases = [leaf for leaf in work.left if leaf.parent == kernel.parent and work.is_vector(leaf, "v", v=size)]
    work.shown["output_bias"] = bool(biases)
    for leaf in biases[:1]:
        work.take(part, "bias", leaf, "v", v=size)


def embedding(work: Matching, part: Part) -> None:
    """Matches the first token embedding table."""
    for leaf in [leaf for leaf in work.left if work.may_be(leaf, "v d")][:1]:
        work.take(part, "table", leaf, "v d")
