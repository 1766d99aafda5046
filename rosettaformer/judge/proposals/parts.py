"""Matches components that contain no others in the parameters of a module: attention, feed-forward and norm, by names and shapes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .parameter_leaves import Leaf
from .shapes import layouts
from .vocabulary import ATTENTION, DOWNS, FUSED, GATES, OFFSETS, role_of, tokens, within

# a kernel that all heads share: its axes, and which of them are outputs
_OF_ALL_HEADS = {"query": ("i k", "k"), "key": ("i k", "k"), "value": ("i e", "e")}


@dataclass(frozen=True)
class Row:
    """A canonical parameter's place: the native name and the axes that it may have; the first is the likeliest."""

    name: str
    native: str
    axes: tuple[str, ...]


@dataclass
class Part:
    """A component of the model: its kind, its place, and its native sub-module; rows by names relative to both."""

    component: str
    path: str
    native: str
    rows: list[Row] = field(default_factory=list)
    parts: list["Part"] = field(default_factory=list)
    ordered: list[str] = field(default_factory=list)  # what only the order of declaration told apart


class PartMatching:
    """Takes parameters from the remaining ones, part by part."""

    def __init__(self, leaves: list[Leaf], sizes: Mapping[str, int]) -> None:
        self.leaves, self.left, self.sizes = tuple(leaves), leaves, sizes
        self.shown: dict[str, Any] = {}
        self.unpaired: list[Leaf] = []  # output biases of attentions whose other projections have none; the reference has no such bias

    def _take(self, part: Part, name: str, leaf: Leaf, axes: str, outputs: str, which: tuple[int, int] = (0, 1)) -> None:
        found = layouts(axes, outputs, leaf.shape, self.sizes, leaf.first, which)
        if not found:  # the class shows one order, and the shape another
            found = layouts(axes, outputs, leaf.shape, self.sizes, "", which)
        part.rows.append(Row(name, within(leaf.path, part.native), tuple(found)))
        if leaf in self.left:
            self.left.remove(leaf)

    def _inside(self, native: str) -> list[Leaf]:
        return [leaf for leaf in self.left if not native or leaf.path.startswith(f"{native}.")]

    def _is(self, leaf: Leaf, axes: str) -> bool:
        """Whether the tensor could have these axes, in any order of inputs and outputs."""
        letters = axes.split()
        return any(layouts(axes, " ".join(letters[cut:]), leaf.shape, self.sizes) for cut in range(1, len(letters)))

    def _units(self, leaf: Leaf) -> int:
        """Returns how many projections of attention a tensor holds; 0 if it is not one."""
        if sum(size != 1 for size in leaf.shape) < 2:
            return 0
        if self._serves_all_heads(leaf) or any(self._is(leaf, axes) for axes, _ in ATTENTION.values()):
            return 1
        if role_of(leaf.path.rpartition(".")[2]) in ("query", "key", "value") or role_of(leaf.parent) in ("query", "key", "value"):
            return 0  # a tensor named after one projection holds no others
        return next((n for n in FUSED if layouts("d h k", "h k", leaf.shape, self.sizes, "", (0, n))), 0)

    def _serves_all_heads(self, leaf: Leaf) -> bool:
        """Whether a kernel maps a head's slice of the width, the same for every head."""
        return self.sizes["h"] > 1 and leaf.shape in ((self.sizes["i"], self.sizes["k"]), (self.sizes["k"], self.sizes["i"]))

    def _feeds(self, leaf: Leaf) -> bool:
        return sum(size != 1 for size in leaf.shape) == 2 and (self._is(leaf, "d f") or self._is_doubled(leaf))

    def _is_doubled(self, leaf: Leaf) -> bool:
        """Whether one kernel holds the gate and the hidden layer."""
        return not self._is(leaf, "d f") and not self._units(leaf) and bool(layouts("d f", "f", leaf.shape, self.sizes, "", (0, 2)))

    def _bias(self, kernel: Leaf, outputs: str, count: int, role: str) -> Leaf | None:
        """Returns the bias beside a kernel: in the same module, of the outputs' shape, and of the same name if there are several."""
        beside = [leaf for leaf in self.leaves if leaf.parent == kernel.parent]
        size = count * math.prod(self.sizes[letter] for letter in outputs.split())
        own = [leaf for leaf in beside if leaf in self.left and leaf is not kernel and math.prod(leaf.shape) == size]
        end = kernel.path.rpartition(".")[2]
        paired = [leaf for leaf in own if leaf.path.endswith((end.replace("weight", "bias"), end.replace("kernel", "bias")))]
        named = [leaf for leaf in own if role and role_of(leaf.path.rpartition(".")[2]) == role]
        alone = own if sum(leaf.shape != () and math.prod(leaf.shape) != max(leaf.shape) for leaf in beside) <= 1 else []
        return next(iter(paired or named or alone), None)

    # components

    def _layer_norm(self, part: Part) -> None:
        vectors = [leaf for leaf in self._inside(part.native) if self._is_vector(leaf, "d")]
        offsets = [leaf for leaf in vectors if set(tokens(within(leaf.path, part.native))) & OFFSETS]
        scales = [leaf for leaf in vectors if leaf not in offsets]
        if len(vectors) == 2 and len(scales) != 1:
            scales, offsets = vectors[:1], vectors[1:]
        for name, found in (("scale", scales), ("offset", offsets)):
            if len(found) == 1:
                self._take(part, name, found[0], "d", "d")
        if vectors:
            self.shown.setdefault("norm_offset", bool(offsets))

    _rms_norm = _layer_norm

    def _is_vector(self, leaf: Leaf, axes: str) -> bool:
        size = math.prod(leaf.shape)
        return size == math.prod(self.sizes[letter] for letter in axes.split()) and max(leaf.shape, default=0) == size

    def _feed_forward(self, part: Part) -> None:
        kernels = [leaf for leaf in self._inside(part.native) if self._feeds(leaf)]
        if len(kernels) not in (2, 3):
            return
        self.shown["gated_feed_forward"] = len(kernels) == 3
        if len(doubled := [leaf for leaf in kernels if self._is_doubled(leaf)]) == 1 and len(kernels) == 2:
            self._fused_gate(part, doubled[0])
            kernels.remove(doubled[0])
            self._feed(part, kernels[0], ("output",), "f d", "d")
            return
        width = self.sizes["f"]
        hidden = [
            leaf for leaf in kernels
            if (leaf.first == "out" and leaf.shape[0] == width) or (leaf.first == "in" and leaf.shape[0] != width)
        ]  # fmt: skip
        last = next((leaf for leaf in kernels if self._words(leaf, part) & DOWNS), None) if len(kernels) == 3 else None
        first = [leaf for leaf in kernels if leaf is not last] if last else hidden if len(hidden) == 1 else kernels[:-1]
        if len(kernels) == 3:
            named = [leaf for leaf in first if self._words(leaf, part) & GATES]
            if len(named) == 1:
                first = [*named, *(leaf for leaf in first if leaf is not named[0])]
            else:
                part.ordered += ["gate.kernel", "hidden.kernel"]
        second = next(leaf for leaf in kernels if leaf not in first)
        for kernel, name in (*zip(first, ("gate", "hidden")[-len(first) :], strict=True), (second, "output")):
            axes, vector = ("f d", "d") if name == "output" else ("d f", "f")
            self._feed(part, kernel, (name,), axes, vector)

    def _fused_gate(self, part: Part, kernel: Leaf) -> None:
        names = ("gate", "hidden")
        self.shown["gated_feed_forward"] = True
        part.ordered += [f"{name}.kernel" for name in names]
        self._feed(part, kernel, names, "d f", "f")

    def _feed(self, part: Part, kernel: Leaf, names: Sequence[str], axes: str, vector: str) -> None:
        """Takes a kernel that holds these projections, and its bias."""
        bias = self._bias(kernel, vector, len(names), "")
        self.shown.setdefault("feed_forward_bias", bool(bias))
        for index, name in enumerate(names):
            self._take(part, f"{name}.kernel", kernel, axes, vector, (index, len(names)))
            if bias:
                self._take(part, f"{name}.bias", bias, vector, vector, (index, len(names)))

    def _words(self, leaf: Leaf, part: Part) -> set[str]:
        """Returns the words of a leaf's name, `w1` and `wi_0` among them as they are."""
        steps = within(leaf.path, part.native).split(".")
        return {*tokens(".".join(steps)), *steps}

    def _multi_head_attention(self, part: Part, among: Sequence[Leaf] | None = None) -> None:
        kernels = [leaf for leaf in (self._inside(part.native) if among is None else among) if self._units(leaf)]
        for leaf, roles, index, count in self._roles(part, kernels):
            axes, outputs = _OF_ALL_HEADS[roles] if self._serves_all_heads(leaf) else ATTENTION[roles]
            self._take(part, f"{roles}.kernel", leaf, axes, outputs, (index, count))
        for kernel in kernels:
            held = [row for row in part.rows if row.native == within(kernel.path, part.native)]
            self._attention_bias(part, kernel, [row.name.partition(".")[0] for row in held])
        part.rows.sort(key=lambda row: ([*ATTENTION].index(row.name.partition(".")[0]), row.name.endswith("bias")))
        biases = [row for row in part.rows if row.name.endswith("bias")]
        if [row.name for row in biases] == ["output.bias"]:
            only = biases.pop()
            part.rows.remove(only)
            self.unpaired += [leaf for leaf in self.leaves if within(leaf.path, part.native) == only.native]
        if part.rows:
            self.shown.setdefault("attention_bias", bool(biases))
        self._query_key_norms(part)

    def _query_key_norms(self, part: Part) -> None:
        """Matches the norms of queries and keys, of a head or of all: vectors named after them, without a kernel beside them."""
        kernels = {leaf.parent for leaf in self.leaves if max(leaf.shape, default=0) != math.prod(leaf.shape)}
        for role, heads in (("query", "h"), ("key", "g")):
            for kind, axes in (("head", "k"), ("width", f"{heads} k")):
                found = [
                    leaf for leaf in self._inside(part.native)
                    if self._is_vector(leaf, axes) and leaf.parent not in {part.native, *kernels}
                    and role_of(within(leaf.path, part.native)) == role
                ]  # fmt: skip
                if len(found) == 1 and self.shown.setdefault("query_key_norm", kind) == kind:
                    self._take(part, f"{role}_norm.scale", found[0], axes, axes)

    def _attention_bias(self, part: Part, kernel: Leaf, roles: list[str]) -> None:
        outputs = ATTENTION[roles[0]][1] if roles else ""
        bias = self._bias(kernel, outputs, len(roles), roles[0] if len(roles) == 1 else "") if roles else None
        for index, role in enumerate(roles):
            if bias is None:
                return
            axes = ATTENTION[role][1]
            self._take(part, f"{role}.bias", bias, axes, axes, (index, len(roles)))

    def _roles(self, part: Part, kernels: Sequence[Leaf]) -> list[tuple[Leaf, str, int, int]]:
        """Returns each projection of one attention: its tensor, its role, and which part of the tensor it is."""
        found: list[tuple[Leaf, str, int, int]] = []
        single = []
        for leaf in kernels:
            count = self._units(leaf)
            if count > 1:
                found += [(leaf, role, index, count) for index, role in enumerate(FUSED[count])]
            else:
                single.append(leaf)
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

    def _logits(self, part: Part, kernel: Leaf | None = None) -> None:
        sizes, self.sizes = self.sizes, {**self.sizes, "v": self.sizes["w"]}
        kernel = kernel or next((leaf for leaf in self._inside(part.native) if self._is(leaf, "d v")), None)
        if kernel is not None:
            self._take(part, "kernel", kernel, "d v", "v")
            biases = [leaf for leaf in self.left if leaf.parent == kernel.parent and self._is_vector(leaf, "v")]
            self.shown["output_bias"] = bool(biases)
            for leaf in biases[:1]:
                self._take(part, "bias", leaf, "v", "v")
        self.sizes = sizes

    def _embedding(self, part: Part) -> None:
        for leaf in [leaf for leaf in self.left if self._is(leaf, "v d")][:1]:
            self._take(part, "table", leaf, "v d", "v d")
