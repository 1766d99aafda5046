"""Matches layers and stacks: identifies each attention and norm by name and structure."""

import itertools
import re
from collections.abc import Iterable

from ...common.modules.words import ATTENDS
from .matching import Matching, Part, attention, feed_forward, norm
from .tensors import Leaf
from .vocabulary import CROSS, FEEDS, SELF, tokens, within

SUBLAYERS = {
    "encoder_layer": ("self_attention", "feed_forward"),
    "decoder_layer": ("self_attention", "cross_attention", "feed_forward"),
    "self_attention_sublayer": ("self_attention",),
    "cross_attention_sublayer": ("cross_attention",),
    "feed_forward_sublayer": ("feed_forward",),
}


def stack(work: Matching, part: Part, natives: list[str] | None = None) -> None:
    """Matches an encoder or decoder. natives: its layers, if the norms are a whole model's."""
    for index, native in enumerate(layers_in(work, part.native) if natives is None else sorted(natives, key=_natural)):
        layer(work, part.add(f"{part.component}_layer", f"layers.{index}", native))
    work.shown[f"{part.component}_layers"] = len(part.parts)
    finals = norms_in(work, part.native) if natives is None else []
    work.shown["final_norm"] = bool(finals)
    if len(finals) == 1:
        norm(work, part.add("layer_norm", "final_norm", finals[0]))


def layers_in(work: Matching, native: str) -> list[str]:
    """Returns the layers: the innermost modules with a feed-forward and an attention."""
    found: dict[str, None] = {}
    for leaf in filter(work.feeds, work.inside(native)):
        around = leaf.parent
        while around and not any(map(work.projections, work.inside(around))):
            around = around.rpartition(".")[0]
        if around and sum(map(work.feeds, work.inside(around))) in (2, 3):
            found[around] = None
    return sorted(found, key=_natural) if len({re.sub(r"\d+", "", layer) for layer in found}) == 1 else list(found)


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(word), "") if word.isdigit() else (0, word) for word in re.findall(r"\d+|\D+", path)]


def layer(work: Matching, part: Part) -> None:
    """Matches a layer or sub-layer: attentions, feed-forward network, and norms."""
    sublayers = list(SUBLAYERS[part.component])
    if len(sublayers) == 3 and sum(map(work.projections, work.inside(part.native))) <= 4:
        sublayers.remove("cross_attention")
    attentions = [name for name in sublayers if name != "feed_forward"]
    for name, (native, among) in _attentions(work, part, attentions).items() if attentions else ():
        attention(work, part.add("multi_head_attention", name, native), among)
    if "feed_forward" in sublayers:
        inside = work.inside(part.native)
        native = common(leaf.path for leaf in inside if work.feeds(leaf))
        alone = len(native) > len(part.native) and not any(leaf.path.startswith(f"{native}.") and work.projections(leaf) for leaf in inside)
        feed_forward(work, part.add("feed_forward", "feed_forward", native if alone else part.native))
    _norms(work, part, [f"{name}_norm" for name in sublayers])


def _attentions(work: Matching, part: Part, names: list[str]) -> dict[str, tuple[str, list[Leaf] | None]]:
    """Returns where each attention is: its submodule, or its kernels if shared."""
    kernels = [leaf for leaf in work.inside(part.native) if work.projections(leaf)]
    groups: dict[str, list[Leaf]] = {}
    for leaf in kernels:
        groups.setdefault(_home(work, leaf, part.native), []).append(leaf)
    whole = [native for native, among in groups.items() if sum(map(work.projections, among)) == 4 and native != part.native]
    if len(whole) == len(names):
        return {name: (native, None) for name, native in zip(names, _told_apart(whole, part, names), strict=True)}
    if len(names) == 1:
        return {names[0]: (part.native, kernels)}
    crossing = [leaf for leaf in kernels if set(tokens(within(leaf.path, part.native))) & CROSS]
    if sum(map(work.projections, crossing)) != 4:
        crossing = kernels[len(kernels) // 2 :]
        part.ordered += names
    own = [leaf for leaf in kernels if leaf not in crossing]
    return {names[0]: (part.native, own), names[1]: (part.native, crossing)}


def _home(work: Matching, leaf: Leaf, outer: str) -> str:
    """Returns the innermost submodule around a kernel that has all projections of an attention."""
    native = leaf.parent
    while len(native) > len(outer) and sum(map(work.projections, work.inside(native))) < 4:
        native = native.rpartition(".")[0]
    return native if len(native) > len(outer) else outer


def _told_apart(natives: list[str], part: Part, names: list[str]) -> list[str]:
    """Returns a layer's attentions in the order of the names, by words in their paths."""
    if len(names) == 1:
        return natives
    words = {native: set(tokens(within(native, part.native))) for native in natives}
    crossing = [native for native in natives if words[native] & CROSS and not words[native] & SELF]
    own = [native for native in natives if words[native] & SELF]
    if len(crossing) == 1:
        return sorted(natives, key=lambda native: native in crossing)
    if len(own) == 1:
        return sorted(natives, key=lambda native: native not in own)
    part.ordered += names
    return natives


def norms_in(work: Matching, native: str) -> list[str]:
    """Returns the submodules that hold only vectors of the model width."""
    inside = work.inside(native)
    parents = dict.fromkeys(leaf.parent for leaf in inside if leaf.parent and work.is_vector(leaf, "d"))
    return [parent for parent in parents if all(work.is_vector(leaf, "d") for leaf in inside if leaf.path.startswith(f"{parent}."))]


def _norms(work: Matching, part: Part, slots: list[str]) -> None:
    """Matches a layer's norms: by words in their names, otherwise by number or order."""
    modules = norms_in(work, part.native)
    if len(modules) == 2 * len(slots):  # one before and one after each sub-layer
        slots = [name for slot in slots for name in (slot, slot.replace("_norm", "_output_norm"))]
        work.shown["norm_placement"] = "sandwich"
    if len(modules) != len(slots):
        return
    words = {module: tokens(within(module, part.native)) for module in modules}
    fits = {slot: [module for module in modules if _hints(slot, {*words[module]})] for slot in slots}
    unnamed = [module for module in modules if not any(module in found for found in fits.values())]
    if len(unnamed) == 1 == [*fits.values()].count([]):
        fits = {slot: found or unnamed for slot, found in fits.items()}
    if all(len(found) == 1 for found in fits.values()) and len({found[0] for found in fits.values()}) == len(slots):
        order = [fits[slot][0] for slot in slots]
    else:
        order = sorted(modules, key=lambda module: [int(word) for word in words[module] if word.isdigit()])
        part.ordered += slots
    for slot, module in zip(slots, order, strict=True):
        norm(work, part.add("layer_norm", slot, module))


def _hints(slot: str, words: set[str]) -> bool:
    """Whether the words of a norm's name fit a place in the layer."""
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


def common(paths: Iterable[str]) -> str:
    """Returns the innermost submodule that holds all of these parameters."""
    split = [path.split(".")[:-1] for path in paths]
    same = itertools.takewhile(lambda steps: len(set(steps)) == 1, zip(*split, strict=False))
    return ".".join(steps[0] for steps in same)
