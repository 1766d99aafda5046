"""Matches layers and stacks of them: which of a layer's attentions and norms is which, by names and by structure."""

import itertools
import re
from collections.abc import Iterable
from functools import partialmethod

from ...common.modules.words import ATTENDS
from .parameter_leaves import Leaf
from .parts import Part, PartMatching
from .vocabulary import CROSS, FEEDS, SELF, tokens, within


class LayerMatching(PartMatching):
    """Matches layers and stacks, too."""

    def _decoder_layer(self, part: Part) -> None:
        crossing = sum(map(self._units, self._inside(part.native))) > 4
        self._layer(part, ["self_attention", *["cross_attention"] * crossing, "feed_forward"])

    def _layer(self, part: Part, sublayers: list[str]) -> None:
        """Matches sub-layers of these names, each with its norm."""
        attentions = [name for name in sublayers if name != "feed_forward"]
        for name, (native, among) in self._attentions(part, attentions).items() if attentions else ():
            child = Part("multi_head_attention", name, native)
            self._multi_head_attention(child, among)
            part.parts.append(child)
        if len(attentions) < len(sublayers):
            self._feeding(part)
        self._norms(part, [f"{name}_norm" for name in sublayers])

    _encoder_layer = partialmethod(_layer, sublayers=["self_attention", "feed_forward"])
    _self_attention_sublayer = partialmethod(_layer, sublayers=["self_attention"])
    _cross_attention_sublayer = partialmethod(_layer, sublayers=["cross_attention"])
    _feed_forward_sublayer = partialmethod(_layer, sublayers=["feed_forward"])

    def _feeding(self, part: Part) -> None:
        """Matches the feed-forward network of a layer: in a sub-module of its own, or in the layer's."""
        inside = self._inside(part.native)
        feeding = [leaf for leaf in inside if self._feeds(leaf)]
        native = common([leaf.path for leaf in feeding])
        if all(not leaf.path.startswith(f"{native}.") or not self._units(leaf) for leaf in inside) and len(native) > len(part.native):
            child = Part("feed_forward", "feed_forward", native)
        else:
            child = Part("feed_forward", "feed_forward", part.native)
        self._feed_forward(child)
        part.parts.append(child)

    def _attentions(self, part: Part, names: list[str]) -> dict[str, tuple[str, list[Leaf] | None]]:
        """Returns where each attention of a layer is: its sub-module, or its kernels if they are beside another's."""
        kernels = [leaf for leaf in self._inside(part.native) if self._units(leaf)]
        groups: dict[str, list[Leaf]] = {}
        for leaf in kernels:
            groups.setdefault(self._home(leaf, part.native), []).append(leaf)
        whole = [native for native, among in groups.items() if sum(map(self._units, among)) == 4 and native != part.native]
        if len(whole) == len(names):
            order = _told_apart(whole, part, names)
            return {name: (native, None) for name, native in zip(names, order, strict=True)}
        if len(names) == 1:
            return {names[0]: (part.native, kernels)}
        crossing = [leaf for leaf in kernels if set(tokens(within(leaf.path, part.native))) & CROSS]
        if sum(map(self._units, crossing)) != 4:
            crossing = kernels[len(kernels) // 2 :]
            part.ordered += names
        own = [leaf for leaf in kernels if leaf not in crossing]
        return {names[0]: (part.native, own), names[1]: (part.native, crossing)}

    def _home(self, leaf: Leaf, within: str) -> str:
        """Returns the innermost sub-module around a kernel that has the four projections of one attention."""
        native = leaf.parent
        while len(native) > len(within):
            if sum(self._units(other) for other in self._inside(native)) >= 4:
                return native
            native = native.rpartition(".")[0]
        return within

    def _norm_modules(self, native: str) -> list[str]:
        """Returns the sub-modules that hold only vectors of the model width, with no kernel beside them."""
        inside = self._inside(native)
        parents = dict.fromkeys(leaf.parent for leaf in inside if self._is_vector(leaf, "d"))
        among = {parent: [leaf for leaf in inside if leaf.path.startswith(f"{parent}.")] for parent in parents if parent}
        return [parent for parent, held in among.items() if all(self._is_vector(leaf, "d") for leaf in held)]

    def _norms(self, part: Part, slots: list[str]) -> None:
        modules = self._norm_modules(part.native)
        if len(modules) == 2 * len(slots):  # one before each sub-layer, and one after it
            slots = [name for slot in slots for name in (slot, slot.replace("_norm", "_output_norm"))]
            self.shown["norm_placement"] = "sandwich"
        if len(modules) != len(slots):
            return
        words = {module: set(tokens(within(module, part.native))) for module in modules}
        fits = {slot: [module for module in modules if _hints(slot, words[module])] for slot in slots}
        unnamed = [module for module in modules if not any(module in found for found in fits.values())]
        if len(unnamed) == 1 == [*fits.values()].count([]):
            fits = {slot: found or unnamed for slot, found in fits.items()}
        if all(len(found) == 1 for found in fits.values()) and len({found[0] for found in fits.values()}) == len(slots):
            order = [fits[slot][0] for slot in slots]
        else:
            order = sorted(modules, key=lambda module: [int(word) for word in tokens(within(module, part.native)) if word.isdigit()])
            part.ordered += slots
        for slot, module in zip(slots, order, strict=True):
            self._norm(part, slot, module)

    def _norm(self, part: Part, path: str, native: str) -> None:
        child = Part("layer_norm", path, native)
        self._layer_norm(child)
        part.parts.append(child)

    def _encoder(self, part: Part) -> None:
        self._stack(part, self._layers(part.native), "encoder_layer")

    def _decoder(self, part: Part) -> None:
        self._stack(part, self._layers(part.native), "decoder_layer")

    def _stack(self, part: Part, layers: list[str], component: str, norms: bool = True) -> None:
        for index, native in enumerate(layers):
            child = Part(component, f"layers.{index}", native)
            getattr(self, f"_{component}")(child)
            part.parts.append(child)
        self.shown[f"{part.component}_layers"] = len(layers)
        finals = self._norm_modules(part.native) if norms else []
        self.shown["final_norm"] = bool(finals)
        if len(finals) == 1:
            self._norm(part, "final_norm", finals[0])

    def _layers(self, within: str) -> list[str]:
        """Returns the sub-modules that are layers: around each feed-forward, the innermost that also contains an attention."""
        found: dict[str, None] = {}
        for leaf in self._inside(within):
            if not self._feeds(leaf):
                continue
            native = leaf.parent
            while native and not any(self._units(other) for other in self._inside(native)):
                native = native.rpartition(".")[0]
            if native and sum(self._feeds(other) for other in self._inside(native)) in (2, 3):
                found[native] = None
        return sorted(found, key=natural) if len({re.sub(r"\d+", "", native) for native in found}) == 1 else list(found)


def _hints(slot: str, words: set[str]) -> bool:
    if words & {"pre", "post"}:
        after = slot.endswith("_output_norm")
        return after == ("post" in words) and _hints(slot.replace("_output_norm", "_norm"), words - {"pre", "post"})
    if slot.endswith("_output_norm"):
        return False
    if slot == "feed_forward_norm":
        return bool(words & FEEDS) and not words & ATTENDS
    if slot == "cross_attention_norm":
        return bool(words & (CROSS - {"multihead"}))
    return bool(words & (ATTENDS | SELF)) and not words & CROSS


def _told_apart(natives: list[str], part: Part, names: list[str]) -> list[str]:
    """Returns the attentions of a layer in the order of the names: by their words, or as they are declared."""
    if len(names) == 1:
        return natives
    words = {native: set(tokens(within(native, part.native))) for native in natives}
    crossing = [native for native in natives if words[native] & CROSS and not words[native] & SELF]
    own = [native for native in natives if words[native] & SELF]
    if len(crossing) == 1:
        return [native for native in natives if native not in crossing] + crossing
    if len(own) == 1:
        return own + [native for native in natives if native not in own]
    part.ordered += names
    return natives


def common(paths: Iterable[str]) -> str:
    """Returns the innermost sub-module that holds all of these parameters."""
    split = [path.split(".")[:-1] for path in paths]
    if not split:
        return ""
    same = itertools.takewhile(lambda steps: len(set(steps)) == 1, zip(*split, strict=False))
    return ".".join(steps[0] for steps in same)


def natural(path: str) -> list[tuple[int, str]]:
    return [(int(word), "") if word.isdigit() else (0, word) for word in re.findall(r"\d+|\D+", path)]
